import assert from "node:assert/strict";
import { test } from "node:test";
import { place } from "./pagehead.js";

test("a place on a page keeps the page's path and query: Gradio's base would lead to the first page", () => {
  assert.equal(
    place("draft-tree", { pathname: "/app/methods", search: "?__theme=dark" }),
    "/app/methods?__theme=dark#draft-tree",
  );
  assert.equal(place('"x" <b>', { pathname: "/methods", search: "" }), "/methods#%22x%22%20%3Cb%3E");
});
