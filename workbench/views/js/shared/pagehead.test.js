import assert from "node:assert/strict";
import { test } from "node:test";
import { place } from "./pagehead.js";

test("a link to a place keeps the page's path and query, because Gradio sets another base URL", () => {
  assert.equal(
    place("draft-tree", { pathname: "/app/methods", search: "?__theme=dark" }),
    "/app/methods?__theme=dark#draft-tree",
  );
  assert.equal(place('"x" <b>', { pathname: "/methods", search: "" }), "/methods#%22x%22%20%3Cb%3E");
});
