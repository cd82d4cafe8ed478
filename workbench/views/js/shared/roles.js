/** Messages of a chat: who speaks is shown as a role, not as the marker that says so to the model. No DOM.
 *
 *  A prompt is one text, as the tokenizer reads it: runs, links and kept runs hold it with its markers. Here that text
 *  is taken apart for a person, and put together again, so that nothing of it is lost on the way. */

const OPEN = "<|user|>", CLOSE = "<|assistant|>";
const MARKER = /^<\|(system|user|assistant)\|>$/;
const NAME = /^(system|user|assistant|model|tool)$/;
/** Formats that write a role's name between markers: opening token, what stands behind the name, what ends a turn. */
const NAMED = {
  "<|im_start|>": { closing: ["\n"], end: ["<|im_end|>", "\n"] },
  "<start_of_turn>": { closing: ["\n"], end: ["<end_of_turn>", "\n"] },
  "<|start_header_id|>": { closing: ["<|end_header_id|>", "\n\n"], end: ["<|eot_id|>"] },
};
/** Tokens that a role's name is cut into, at most: "ass", "istant". */
const LONGEST = 4;

/** A prompt as a person writes it: the words, and whether they are a message to be answered. Pure.
 *  @param {string} prompt  @returns {{words: string, chat: boolean}} */
export function split(prompt) {
  const chat = prompt.startsWith(OPEN) && prompt.endsWith(CLOSE) && prompt.length >= OPEN.length + CLOSE.length;
  return { words: chat ? prompt.slice(OPEN.length, -CLOSE.length) : prompt, chat };
}

/** The prompt of words: the inverse of `split`. Pure. */
export function join(words, chat) {
  return chat ? OPEN + words + CLOSE : words;
}

/** The prompt of what somebody typed: no words are no message. Pure. */
export function typed(words, chat) {
  return words.trim() ? join(words, chat) : words;
}

/** A token's text, or the role that it stands for. Pure. */
export function word(text) {
  return MARKER.exec(text)?.[1] ?? text;
}

/** Whether these tokens stand there. */
function stand(tokens, at, wanted) {
  return wanted.every((text, k) => tokens[at + k] === text);
}

/** The role that is named behind an opening token, and how many tokens that takes; null where none is. */
function opened(tokens, at) {
  const format = NAMED[tokens[at]];
  for (let n = 1; format && n <= LONGEST; n += 1) {
    const role = tokens.slice(at + 1, at + 1 + n).join("");
    if (NAME.test(role) && stand(tokens, at + 1 + n, format.closing))
      return { role, n: 1 + n + format.closing.length, end: format.end };
  }
  return null;
}

/** The tokens of a prompt as roles and what each says. A marker counts where it is a token of its own: what somebody
 *  only typed is text. What ends a turn is left out before the next one. Pure.
 *  @param {string[]} tokens  texts of tokens  @returns {{role: string|null, text: string}[]} */
export function turns(tokens) {
  const found = /** @type {{role: string|null, text: string}[]} */ ([{ role: null, text: "" }]);
  let end = /** @type {string[]} */ ([]);
  for (let i = 0; i < tokens.length; ) {
    const turn = opened(tokens, i), isOver = end.length > 0 && stand(tokens, i, end) && opened(tokens, i + end.length);
    if (turn) {
      found.push({ role: turn.role, text: "" });
      end = turn.end;
    } else if (MARKER.test(tokens[i])) found.push({ role: word(tokens[i]), text: "" });
    else if (!isOver) found.at(-1).text += tokens[i];
    i += turn?.n ?? (isOver ? end.length : 1);
  }
  return found.filter((turn) => turn.role !== null || turn.text !== "");
}
