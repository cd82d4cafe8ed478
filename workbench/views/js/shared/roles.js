/** Chat messages: show roles instead of the model's chat markers. No DOM.
 *
 *  A prompt is one text, as for the tokenizer; runs and links store it with markers. This module splits it for display
 *  and joins it again without loss. */

const OPEN = "<|user|>", CLOSE = "<|assistant|>";
const MARKER = /^<\|(system|user|assistant)\|>$/;
const NAME = /^(system|user|assistant|model|tool)$/;
/** Formats with a role name between markers: opening token, tokens after the name, tokens that end a turn. */
const NAMED = {
  "<|im_start|>": { closing: ["\n"], end: ["<|im_end|>", "\n"] },
  "<start_of_turn>": { closing: ["\n"], end: ["<end_of_turn>", "\n"] },
  "<|start_header_id|>": { closing: ["<|end_header_id|>", "\n\n"], end: ["<|eot_id|>"] },
};
/** Maximum number of tokens of a role name: "ass", "istant". */
const LONGEST = 4;

/** Split a prompt into its text and whether it is a chat message. Pure.
 *  @param {string} prompt  @returns {{words: string, chat: boolean}} */
export function split(prompt) {
  const chat = prompt.startsWith(OPEN) && prompt.endsWith(CLOSE) && prompt.length >= OPEN.length + CLOSE.length;
  return { words: chat ? prompt.slice(OPEN.length, -CLOSE.length) : prompt, chat };
}

/** Return the prompt of a text: the inverse of `split`. Pure. */
export function join(words, chat) {
  return chat ? OPEN + words + CLOSE : words;
}

/** Return the prompt of a typed text; empty text is no message. Pure. */
export function typed(words, chat) {
  return words.trim() ? join(words, chat) : words;
}

/** Return a token's text, or the role of a marker. Pure. */
export function word(text) {
  return MARKER.exec(text)?.[1] ?? text;
}

/** Return whether the tokens at `at` are the wanted ones. */
function matches(tokens, at, wanted) {
  return wanted.every((text, k) => tokens[at + k] === text);
}

/** Return the role after an opening token, and the number of tokens; null if there is none. */
function opened(tokens, at) {
  const format = NAMED[tokens[at]];
  for (let n = 1; format && n <= LONGEST; n += 1) {
    const role = tokens.slice(at + 1, at + 1 + n).join("");
    if (NAME.test(role) && matches(tokens, at + 1 + n, format.closing))
      return { role, n: 1 + n + format.closing.length, end: format.end };
  }
  return null;
}

/** Return the tokens of a prompt as turns. A marker counts only if it is a single token; a typed one is text. The
 *  tokens that end a turn are left out before the next one. Pure.
 *  @param {string[]} tokens  texts of tokens  @returns {{role: string|null, text: string}[]} */
export function turns(tokens) {
  const found = /** @type {{role: string|null, text: string}[]} */ ([{ role: null, text: "" }]);
  let end = /** @type {string[]} */ ([]);
  for (let i = 0; i < tokens.length; ) {
    const turn = opened(tokens, i);
    const isOver = end.length > 0 && matches(tokens, i, end) && opened(tokens, i + end.length);
    if (turn) {
      found.push({ role: turn.role, text: "" });
      end = turn.end;
    } else if (MARKER.test(tokens[i])) found.push({ role: word(tokens[i]), text: "" });
    else if (!isOver) found.at(-1).text += tokens[i];
    i += turn?.n ?? (isOver ? end.length : 1);
  }
  return found.filter((turn) => turn.role !== null || turn.text !== "");
}
