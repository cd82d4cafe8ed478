/** Layout of a draft tree: marks, labels, edges, fold buttons. Pure.
 *
 *  A level of the tree is a band. In the *spine* layout the accepted path is a straight line, its labels above, its
 *  tests below; other drafts after the same token hang below the line in their band, one row each. An edge to them
 *  leaves its parent at the border between two bands and goes down there, where no label is, so nothing crosses a
 *  label. Bands are filled from the right; an item that would overlap an earlier one moves down.
 *  The *levels* layout has no line: one row per leaf, the accepted path first.
 *
 *  @typedef {{width: number, height: number, pitch: number, measure: (text: string, small?: boolean) => number,
 *             whole?: boolean}} Room  of the region, in pixels; `pitch`: least height of a pressable item; `whole`:
 *             everything is unfolded
 *  @typedef {{id: number|string, node: object, x: number, y: number, scale: number, top: boolean, path: string|null,
 *             word: object, note: object|null, fold: object|null, lead: object|null, hit: object}} Item
 *    `x`, `y`: of the mark; `top`: on the accepted path; `path`: its edge; `lead`: line from a raised label to its
 *    mark */

const LEFT = 2, RIGHT = 8, FIRST = 48, NARROW = 56, WIDE = 150, LEVEL = 92;
const MARK = 10, ROW = 8, PILL = 16;
/** Least width of a legible label, in pixels: four letters. */
const SHORT = 30;
/** Extent of a line of text above and below its baseline, in pixels. */
const WORD = [10, 4], SMALL = [9, 3];

/** Lay out a tree as a spine. @param {object} tree  of `treemodel.model`
 *  @param {(column: number, room: number) => Map} unfold  returns the nodes to draw, given the width of a column and
 *    the rows of the region  @param {Room} room
 *  @param {{cut: Function, test: Function, visible: Function, decimals: Function}} text  of `treetext`
 *  @returns {{items: Item[], heads: object[], width: number, height: number, still: number, column: number}}  `still`:
 *    height of the part that stays visible while the rest is scrolled */
export function spine(tree, unfold, room, text) {
  const own = tree.nodes,
    line = new Set(tree.spine),
    notes = [...own.values()].some((n) => n.tested && !n.onPath && text.test(n).length);
  const pitch = Math.max(room.pitch, notes ? 29 : 24);
  const words = tree.spine.map((id) => room.measure(text.visible(own.get(id).text)));
  const least = Math.max(room.whole ? LEVEL : NARROW, 32 + pillOf(`+${tree.drafted}`, room)),
    high = (raised) => (raised ? 59 : 45),
    rowsUnder = (y) => Math.max(0, Math.floor((room.height - y - 46) / pitch));
  // The depth depends on the unfolded nodes, and these on the column width: the second iteration is final.
  let bands = bandsOf(tree.spine.length - 1, room, least, words[0]), drawn;
  for (let look = 0; look < 2; look += 1) {
    drawn = unfold(bands.column, rowsUnder(high(false)));
    bands = bandsOf(deepest(own, drawn, 1), room, least, words[0]);
  }
  const raised = words.some((w, k) => w > bands.end(k) - bands.start(k) - 8), y = high(raised), first = y + 33;
  const placed = board(own, drawn, bands, { first, pitch, line, text, room });
  for (let k = tree.spine.length - 1; k >= 0; k -= 1) placed.hang(tree.spine[k], y);
  tree.spine.forEach((id, k) => placed.items.push(onSpine(own.get(id), k)));
  return finish(placed, bands, { still: y + 25, least: y + 40 });

  function onSpine(node, k) {
    const x = bands.middle(k), wide = bands.end(k) - bands.start(k);
    const reach = raised
      ? 2 *
        Math.min(
          x - LEFT + 2,
          ...[k - 1, k + 1]
            .filter((j) => j >= 0 && j < tree.spine.length)
            .map((j) => Math.abs(bands.middle(j) - x) - 4),
          bands.width - x - 2,
        )
      : wide - 6;
    const up = raised && k % 2 === 0, base = up ? 29 : y - 14;
    const item = {
      id: node.id,
      node,
      x,
      y,
      scale: 1,
      top: true,
      fold: placed.foldOf(node.id),
      lead: up ? { x, y0: 35, y1: y - 12 } : null,
    };
    item.word = line1(
      text.cut(text.visible(node.text), reach, room.measure),
      x,
      base,
      "middle",
      room,
      text.visible(node.text),
    );
    const tests =
      node.id === "target"
        ? [`${node.kind} · p ${text.decimals(node.p, 2)}`, `p ${text.decimals(node.p, 2)}`]
        : text.test(node);
    item.note = line2(tests, x, y + 21, wide - 8, "middle", room);
    item.path = k === 0 ? null : `M${bands.middle(k - 1)} ${y}H${x}`;
    item.hit = { x: bands.start(k) + 1, y: base - WORD[0], w: wide - 2, h: y + 24 - base + WORD[0] };
    return item;
  }
}

/** Lay out a tree by levels. Arguments and result as for `spine`. */
export function levels(tree, unfold, room, text) {
  const own = tree.nodes,
    notes = [...own.values()].some((n) => n.tested && text.test(n).length),
    pitch = Math.max(room.pitch, notes ? 29 : 24);
  const drawn = unfold(LEVEL, 0),
    bands = bandsOf(deepest(own, drawn, 0), room, LEVEL, room.measure(text.visible(own.get(-1).text)) + 22);
  const placed = board(own, drawn, bands, { first: 36, pitch, line: new Set(), text, room });
  placed.block(-1, 0, 0, null);
  return finish(placed, bands, { still: 36 + Math.max(22, pitch - 8), least: 70 });
}

/** Return the number of levels drawn; a fold button under the spine takes `after` levels more than its parent. */
function deepest(own, drawn, after) {
  return Math.max(
    1,
    ...[...drawn].map(
      ([id, { folded, more }]) => own.get(id).depth + ((folded || more) && own.get(id).onPath ? after : 0),
    ),
  );
}

/** Return the bands: band 0 holds the root, each other band one level. */
function bandsOf(depth, room, least, rootWord) {
  const first = Math.max(FIRST, Math.min(rootWord + 12, 96, room.width / 6)),
    column = Math.max(least, Math.min(WIDE, (room.width - first - LEFT - RIGHT) / depth));
  const start = (k) => LEFT + (k === 0 ? 0 : first + (k - 1) * column), end = (k) => start(k + 1);
  return {
    depth,
    column,
    start,
    end,
    middle: (k) => (start(k) + end(k)) / 2,
    width: Math.max(room.width, end(depth) + RIGHT),
  };
}

/** Return a layout in progress: its items, and the boxes that they occupy. */
function board(own, drawn, bands, { first, pitch, line, text, room }) {
  const items = [],
    occupied = [],
    y = (row) => first + row * pitch,
    under = pitch - ROW - 1;
  const take = (x0, y0, x1, y1) => occupied.push({ x0, y0, x1, y1 });
  const meets = (x0, y0, x1, y1) => occupied.some((t) => t.x0 < x1 && t.x1 > x0 && t.y0 < y1 && t.y1 > y0);
  /** Return the right limit of a line of text. */
  const free = (x, y0, y1) =>
    Math.min(bands.width - 4, ...occupied.filter((t) => t.x1 > x && t.y0 < y1 && t.y1 > y0).map((t) => t.x0)) - 5;
  const kids = (id) => drawn.get(id).children.filter((c) => !line.has(c));
  const folds = new Map();

  /** Collect the least extent of a node and its drawn descendants: x0 to x1 per row. Return the number of rows. */
  function shape(id, band, row, cells) {
    const here = kids(id);
    cells.push({ row, x0: bands.start(band) + 2, x1: bands.end(band) - (here.length ? 0 : 4) });
    let next = row,
      last = row;
    for (const child of here) {
      last = next;
      next += shape(child, band + 1, next, cells);
    }
    for (let r = row + 1; r <= last; r += 1)
      cells.push({ row: r, x0: bands.start(band + 1) - 4, x1: bands.start(band + 1) + 4 });
    return Math.max(1, next - row);
  }

  /** Place a node and its descendants in a row of its band. `from`: start of its edge. */
  function block(id, band, row, from) {
    const node = own.get(id),
      here = kids(id),
      at = y(row),
      x = bands.start(band) + (band === 0 ? 10 : 13),
      leaf = here.length === 0;
    const item = {
      id,
      node,
      x,
      y: at,
      scale: band === 0 ? 1 : 0.8,
      top: line.size === 0 && node.onPath,
      lead: null,
      path: from && edge(from, bands.start(band), at, x - 8),
    };
    const { folded, more } = drawn.get(id),
      sign = folded ? `+${folded}` : more ? "−" : "",
      pill = sign ? pillWidth(sign) : 0;
    const wordAt = x + 11,
      edgeOf = bands.end(band) - 4,
      far = leaf ? free(wordAt, at - 8, at + 8) : edgeOf,
      room1 = Math.max(far, Math.min(edgeOf, bands.width - 4)) - wordAt - (pill ? pill + 4 : 0);
    const whole = text.visible(node.text);
    item.word = line1(text.cut(whole, room1, room.measure), wordAt, at + 4, "start", room, whole);
    const right = wordAt + item.word.w;
    item.fold = sign
      ? { id, text: sign, open: !folded, x: right + 4, y: at - PILL / 2, w: pill, h: PILL, path: null }
      : null;
    const tests =
      node.id === "target"
        ? [`${node.kind} · p ${text.decimals(node.p, 2)}`, `p ${text.decimals(node.p, 2)}`]
        : text.test(node);
    const roomAt = (x0) => (leaf ? Math.max(free(x0, at + 8, at + 20), edgeOf) : edgeOf) - x0;
    item.note = tests.length
      ? (line2(tests.slice(0, 1), wordAt, at + 17, roomAt(wordAt), "start", room) ??
        line2(tests, bands.start(band) + 5, at + 17, roomAt(bands.start(band) + 5), "start", room) ??
        line2(tests, wordAt, at + 17, roomAt(wordAt), "start", room))
      : null;
    const end = item.fold ? item.fold.x + pill : right;
    take(bands.start(band) + 2, at - ROW, Math.max(end, leaf ? 0 : bands.end(band)), at + ROW);
    if (item.note) take(item.note.x, at + 8, item.note.x + item.note.w, at + 20);
    item.hit = {
      x: bands.start(band) + 2,
      y: at - 9,
      w: Math.max(24, right + (item.fold ? 2 : 4) - bands.start(band) - 2),
      h: pitch,
    };
    items.push(item);
    let next = row,
      last = at;
    for (const child of here) {
      last = y(next);
      next += block(child, band + 1, next, { x: end + 2, y: at });
    }
    if (last > at) take(bands.start(band + 1) - 3, at, bands.start(band + 1) + 3, last + 3);
    return Math.max(1, next - row);
  }

  /** Return this row, or one further down in which the label has a legible width. */
  function legible(id, band, row) {
    const { folded, more } = drawn.get(id),
      sign = folded ? `+${folded}` : more ? "−" : "",
      at = bands.start(band) + 24;
    const wanted = Math.min(SHORT, room.measure(text.visible(own.get(id).text))) + (sign ? pillWidth(sign) + 4 : 0);
    const fits = (r) => Math.max(free(at, y(r) - 8, y(r) + 8), bands.end(band) - 4) - at >= wanted;
    const found = [0, 1, 2, 3, 4].find((more) => fits(row + more));
    return row + (found ?? 0);
  }

  /** Hang the other drafts after a token of the spine below it, each as high as possible. */
  function hang(id, from) {
    const band = own.get(id).depth + 1,
      { folded, more } = drawn.get(id),
      start = bands.start(band);
    const origin = { x: bands.middle(band - 1) + 9, y: from };
    let row = 0,
      last = null;
    for (const child of kids(id)) {
      const cells = [],
        rows = shape(child, band, 0, cells);
      while (cells.some((c) => meets(c.x0, y(row + c.row) - ROW, c.x1, y(row + c.row) + under))) row += 1;
      if (rows === 1 && !kids(child).length) row = legible(child, band, row);
      block(child, band, row, origin);
      last = row;
      row += rows;
    }
    const sign = folded ? `+${folded}` : more ? "−" : "";
    if (sign) {
      const w = pillWidth(sign),
        x = start + 8;
      while (meets(start + 2, y(row) - ROW, x + w, y(row) + ROW)) row += 1;
      folds.set(id, {
        id,
        text: sign,
        open: !folded,
        x,
        y: y(row) - PILL / 2,
        w,
        h: PILL,
        path: edge(origin, start, y(row), x),
      });
      take(start + 2, y(row) - ROW, x + w, y(row) + ROW);
      last = row;
    }
    if (last !== null) take(start - 3, from + 12, start + 3, y(last) + 3);
  }

  const pillWidth = (sign) => pillOf(sign, room);
  return { items, block, hang, foldOf: (id) => folds.get(id) ?? null, pitch };
}

/** Return the width of a fold button. */
const pillOf = (sign, room) => Math.max(20, Math.ceil(room.measure(sign, true)) + 4);

/** Return the path of an edge: along the parent's line to the border of the bands, down, and to the mark. */
function edge(from, border, y, x) {
  if (y - from.y < 8) return `M${Math.round(10 * from.x) / 10} ${from.y}H${Math.round(10 * x) / 10}`;
  const r = Math.max(1, Math.min(7, border - from.x)), f = (v) => Math.round(10 * v) / 10;
  return `M${f(border - Math.max(r, border - from.x))} ${from.y}H${f(border - r)}Q${f(border)} ${from.y} ${f(border)} ${f(from.y + r)}V${y - 6}Q${f(border)} ${y} ${f(border + 6)} ${y}H${f(Math.max(x, border + 6))}`;
}

function line1(shown, x, y, anchor, room, whole) {
  return { text: shown, whole, x, y, anchor, w: room.measure(shown) };
}

/** Return the longest wording that fits, or null. */
function line2(wordings, x, y, space, anchor, room) {
  const shown = wordings.find((words) => room.measure(words, true) <= space);
  return shown === undefined ? null : { text: shown, x, y, anchor, w: room.measure(shown, true) };
}

function finish(placed, bands, { still, least }) {
  const { items, pitch } = placed;
  const low = Math.max(
    least,
    ...items.map((n) => n.hit.y + n.hit.h),
    ...items.map((n) => (n.fold ? n.fold.y + n.fold.h + 6 : 0)),
    ...items.map((n) => (n.note ? n.note.y + SMALL[1] : 0)),
  );
  const heads = Array.from({ length: bands.depth + 1 }, (_, k) => ({
    x: bands.middle(k),
    words: k === 0 ? ["committed", "root"] : [`depth ${k}`, `${k}`],
    room: bands.end(k) - bands.start(k) - 6,
  }));
  return { items, heads, width: bands.width, height: low + 6, still, column: bands.column, pitch };
}

// -- Occupied boxes, for tests and the overview -----------------------------------------------------------------------

/** Return the boxes of everything drawn except edges. */
export function boxes(placed) {
  return placed.items.flatMap((n) => {
    const r = MARK * n.scale,
      found = /** @type {any[]} */ ([
        { of: n.id, what: "mark", x0: n.x - r, y0: n.y - r, x1: n.x + r, y1: n.y + r },
        textBox(n.id, "word", n.word, WORD),
      ]);
    if (n.note) found.push(textBox(n.id, "note", n.note, SMALL));
    if (n.fold)
      found.push({
        of: n.id,
        what: "fold",
        x0: n.fold.x,
        y0: n.fold.y,
        x1: n.fold.x + n.fold.w,
        y1: n.fold.y + n.fold.h,
      });
    return found;
  });
}

/** Return the box of a text. @param {number[]} reach  extent above and below the baseline */
function textBox(of, kind, { x, y, w, anchor }, reach) {
  const [up, down] = reach;
  const x0 = anchor === "middle" ? x - w / 2 : x;
  return { of, what: kind, x0, y0: y - up, x1: x0 + w, y1: y + down };
}
