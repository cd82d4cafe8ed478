/** Spaces, breaks and tabs made visible. Pure. */
export function visible(text) {
  return (
    text
      .replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length))
      .replaceAll("\n", "⏎")
      .replaceAll("\t", "⇥") || "·"
  );
}
