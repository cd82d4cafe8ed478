import assert from "node:assert/strict";
import { test } from "node:test";
import { brief, home, isKept, lacking, LONGEST, names, read, run, write } from "./address.js";

const ID = "20261122-180000-0a1b2c3d", OTHER = "20261122-180001-0a1b2c3e";

test("a kept run has a path, everything else a query; both are parsed as they were written", () => {
  for (const query of [
    `recorded=${ID}&round=3&token=1`,
    `tab=vision&recorded=${ID}`,
    "recorded=draft-tree&round=2",
    `tab=pair&recorded=${ID}&recorded=draft-tree&round=2`,
    "method=medusa&prompt=a+%26+b",
    "",
  ]) {
    for (const base of ["/", "/app/"]) {
      const [pathname, search = ""] = write(base, query).split("?");
      assert.deepEqual(
        [...new URLSearchParams(read({ pathname, search }))].sort(),
        [...new URLSearchParams(query)].sort(),
      );
      assert.equal(home(pathname), base);
    }
  }
  assert.equal(write("/", `recorded=${ID}&round=3`), `/r/${ID}?round=3`);
  assert.equal(write("/app/", ""), "/app/");
});

test("a hostile name stays one path segment and one run", () => {
  for (const bad of ["../../etc/passwd", "a+b", "<b>&c=1", "x/y", "?recorded=z"]) {
    const path = run("/app", bad);
    assert.equal(path.split("/").length, 4, path);
    assert.deepEqual(names(path), [bad]);
    assert.ok(!isKept(bad));
  }
  assert.deepEqual(names("/r/%E0%A4%A+x"), ["%E0%A4%A", "x"], "invalid UTF-8 is left unchanged");
  assert.equal(
    new URLSearchParams(read({ pathname: "/r/%3Cb%3E", search: "?recorded=other&round=2" })).get("recorded"),
    "<b>",
  );
});

test("only values that are too long for an address are left out", () => {
  const short = "tab=compare&prompt=a+%26+b&seed=3";
  assert.equal(brief(short), short, "as it was written");
  assert.equal(brief(""), "");
  assert.equal(lacking(short), "");
  assert.match(lacking("x".repeat(LONGEST + 1)), /does not contain the prompt/);
  const long = new URLSearchParams({ target: "smollm2", prompt: "word ".repeat(20000), seed: "3" }).toString();
  assert.equal(brief(long), "target=smollm2&seed=3");
  const wide = new URLSearchParams({ prompt: "狐".repeat(900), tab: "live" }).toString(); // nine characters each
  assert.ok(wide.length > LONGEST);
  assert.equal(brief(wide), "tab=live");
  const two = new URLSearchParams([["text", "x".repeat(4000)], ["text", "y".repeat(4000)], ["by", "1"]]).toString();
  assert.equal(brief(two), "by=1", "all values of a name are removed");
});

test("two runs share an address", () => {
  assert.equal(run("/app", ID, OTHER), `/app/r/${ID}+${OTHER}`);
  assert.deepEqual(names(run("", ID, OTHER)), [ID, OTHER]);
  assert.deepEqual([names("/"), names("/r"), names("/r/")], [[], [], []]);
});
