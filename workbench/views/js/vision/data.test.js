import assert from "node:assert/strict";
import { test } from "node:test";
import { figure } from "../shared/speedup.js";
import {
  acceptanceWhere,
  byKind,
  gateChoice,
  grounded,
  headline,
  items,
  kindRows,
  lastWord,
  patchWeights,
  wordsOnPatch,
  mode,
  pictureMarks,
  place,
  visionTokensText,
  visionData,
  span,
  split,
  wordKinds,
  wordOf,
} from "./data.js";

const round = (index, emitted, vision = {}) => ({
  index,
  vision,
  emitted: emitted.map(([text, kind, p]) => ({ text, kind, p })),
});
const rounds = [
  round(
    0,
    [
      ["A", "accepted", 0.9],
      [" re", "corrected", 0.9],
    ],
    { drafter: "head", n_target: 4, n_drafter: 2, kept: [0, 3] },
  ),
  round(1, [
    ["d", "accepted", 1],
    [" cir", "corrected", 0.7],
  ]),
  round(
    2,
    [
      ["cle.", "bonus", 0.9],
      [" Two", "accepted", 0.5],
    ],
    { pictures: [{ url: "data:image/png;base64,b" }], sees: "drafter" },
  ),
];
const picture = { url: "data:image/png;base64,a", start: 3, end: 7, rows: 2, cols: 2 };
const header = { pictures: [picture] };
const lexicon = { red: "colour", circle: "shape", two: "number" };

test("a word counts as a whole, a position once, and the target's bonus token not at all", () => {
  assert.deepEqual(wordKinds(rounds, lexicon), ["other", "colour", "colour", "shape", "shape", "number"]);
  assert.deepEqual(byKind(rounds, lexicon), { colour: [2, 1], number: [1, 1], other: [1, 1], shape: [1, 0] });
  assert.deepEqual(acceptanceWhere(rounds, [true]), [1, 1], "tokens after the end are left out");
  assert.deepEqual(
    acceptanceWhere([round(0, [["A", "plain", 0.9]])], [true]),
    [0, 0],
    "without drafts, nothing was tested",
  );
  assert.equal(wordOf(rounds, 1), "red");
});

test("no token needs the image before the attribution, then only those above the threshold", () => {
  assert.equal(grounded({ rounds, attribution: null }), null);
  assert.equal(split({ rounds, attribution: null }), null);
  const attribution = { p_blind: [0.9, 0.2, 0.9, 0.4, 0.0] };
  assert.deepEqual(grounded({ rounds, attribution }), [false, true, false, true, true]);
  assert.deepEqual(split({ rounds, attribution }), { grounded: [2, 0], language: [2, 2] });
});

test("the headline counts picture words and other words as the key figures do", () => {
  assert.equal(headline({ rounds, attribution: null }), null);
  const found = headline({ rounds, attribution: { p_blind: [0.9, 0.2, 0.9, 0.4, 0.0] } });
  assert.deepEqual(found.picture, { share: "0 %", counts: "0/2 tested" });
  assert.deepEqual(found.other, { share: "100 %", counts: "2/2 tested" });
  const none = headline({ rounds, attribution: { p_blind: [0.9, 0.9, 1, 0.7, 0.9] } });
  assert.deepEqual(none.picture, { share: "—", counts: "none tested" });
});

test("the last word is the last token with letters or digits", () => {
  assert.equal(lastWord(rounds), 5);
  assert.equal(lastWord([...rounds, round(3, [[".", "accepted", 1], ["", "accepted", 1]])]), 5);
  assert.equal(lastWord([]), -1);
});

test("vision data stay valid until the next record", () => {
  assert.equal(mode(visionData(header, rounds, -1)), "unknown");
  const before = visionData(header, rounds, 1);
  assert.equal(visionTokensText(before), "2 patches kept, 2 dropped");
  assert.equal(before.shown, header.pictures);
  const after = visionData(header, rounds, 2);
  assert.equal(after.since, 2);
  assert.equal(after.n_drafter, 2, "a new image leaves the other vision data unchanged");
  assert.equal(after.pictures, header.pictures, "only the drafter's changed");
  assert.notEqual(after.shown, header.pictures);
  assert.deepEqual(pictureMarks(rounds), [{ index: 2, text: "drafter's image" }]);
  const twice = visionData(
    header,
    [...rounds, { index: 3, vision: { pictures: [{ url: "d" }], sees: "drafter", target_pictures: [{ url: "t" }] } }],
    9,
  );
  assert.deepEqual(
    [twice.shown[0].url, twice.pictures[0].url],
    ["d", "t"],
    "both got another image, then the drafter its own",
  );
});

test("every mode of image input has a text", () => {
  const seen = (more) => ({ since: 0, n_target: 64, ...more });
  assert.equal(visionTokensText(seen({ n_drafter: 0 })), "no vision tokens");
  assert.equal(visionTokensText(seen({ n_drafter: 64, kept: null })), "all 64");
  assert.equal(visionTokensText(seen({ n_drafter: 16, blocks: [[0, 1]] })), "16 blocks of 64 patches");
  assert.equal(visionTokensText(seen({ n_drafter: 2, weights: [[1], [1]] })), "2 queries over 64 patches");
  assert.equal(visionTokensText(seen({ n_drafter: 1, weights: [[1]] })), "1 query over 64 patches");
  assert.equal(visionTokensText({ since: -1 }), "not recorded");
  assert.deepEqual(gateChoice({ gate: { prune: 0.2, pool: 0.8 } }), { name: "pool", weight: 0.8 });
  assert.equal(gateChoice({ gate: null }), null);
});

test("weights of words on patches and of patches on words, within one image", () => {
  const maps = [[0, 0, 0, 0], [255, 128, 0, 0], [255, 0, 0, 0], [0, 0, 0, 255], [0, 0, 0, 200], [0, 0, 0, 0]];
  assert.deepEqual(patchWeights(maps, 3, [2, 4]), [0, 1]);
  assert.equal(patchWeights(maps, 9, [0, 4]), null);
  assert.deepEqual(wordsOnPatch(rounds, maps, 3), [{ index: 3, text: "circle", weight: 1 }]);
  assert.deepEqual(wordsOnPatch(rounds, maps, 0).map((w) => w.text), ["red"]);
  assert.deepEqual(span([picture, { start: 9, end: 11 }], 1), [4, 6]);
  assert.equal(place(3, 2), "row 2, column 2");
});

test("the key figures name both runs, and show a dash for unknown values", () => {
  const figures = { tau: 2, tokens: 6, rounds: 3, tokens_per_second: 100 };
  const run = { trace: { rounds, attribution: null }, figures, seen: visionData(header, rounds, 2), name: "head" };
  const by = (list, id) => list.find((x) => x.id === id);
  const alone = items(run, null, figure({ mine: 100, plain: null, none: "no baseline yet" }), {
    tau: ["τ", "emitted / passes"],
  });
  assert.equal(by(alone, "grounded").value, "—");
  assert.equal(by(alone, "speedup").worked, "no baseline yet");
  assert.equal(by(alone, "tokens").unit, "of 4");
  const explained = { ...run, trace: { rounds, attribution: { p_blind: [0.9, 0.2, 0.9, 0.4, 0, 0.5] } } };
  const both = items(
    explained,
    { ...explained, figures: { ...figures, tau: 1.5 } },
    figure({ mine: 100, plain: 50, none: "" }),
    {},
  );
  assert.equal(by(both, "speedup").value, "2.00×");
  assert.equal(by(both, "tau").unit, "vs 1.50");
  assert.equal(by(both, "grounded").value, "0 %");
  assert.equal(by(both, "language").value, "100 %");
  assert.deepEqual([by(both, "grounded").unit, by(both, "language").unit], ["0/2 vs 0 % 0/2", "3/3 vs 100 % 3/3"]);
  for (const id of ["grounded", "language"]) assert.doesNotMatch(by(both, id).label, /word|other/, "no kind of word");
  assert.deepEqual(kindRows(explained.trace, null, lexicon).map((r) => r.kind), ["colour", "number", "shape", "other"]);
});
