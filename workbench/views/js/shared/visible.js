/** Make spaces, line breaks and tabs visible. Pure. */
export function visible(text) {
  return (
    text
      .replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length))
      .replaceAll("\n", "⏎")
      .replaceAll("\t", "⇥") || "·"
  );
}
