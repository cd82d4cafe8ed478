/** Image sources: gallery, file, clipboard, sketch pad; and edits before the models get an image: hidden or blurred
 *  patches. */

export const MAX_BYTES = 20 * 2 ** 20;
const MAX_SIDE = 768;
const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];

/** Return the error of a file that cannot be opened, or null. Pure. */
export function refuse({ type, size, name = "The file" }) {
  if (!TYPES.includes(type))
    return {
      message: `${name} is not a supported image (${type || "unknown type"}).`,
      remedy: "Use PNG, JPEG, WebP or GIF.",
    };
  if (size > MAX_BYTES)
    return {
      message: `${name} is ${(size / 2 ** 20).toFixed(0)} MB.`,
      remedy: `Use an image of at most ${MAX_BYTES / 2 ** 20} MB.`,
    };
  return null;
}

/** Read a file as an image: bounded in size, rotated upright, and redrawn, so that only its pixels are sent.
 *  @param {boolean} square  whether the target scales images to a square: margins then keep the aspect ratio
 *  @returns {Promise<{url: string, alt: string, name: string}>}  @throws {{message: string, remedy: string}} */
export async function read(file, square = false) {
  const wrong = refuse(file);
  if (wrong) throw wrong;
  const url = URL.createObjectURL(file);
  try {
    const image = await open(url), margins = square && image.naturalWidth !== image.naturalHeight;
    return {
      url: redraw(image, margins),
      alt: "",
      name: `${file.name || "a pasted image"}${margins ? ", with margins, because this target needs square images" : ""}`,
    };
  } catch {
    throw {
      message: `${file.name || "The image"} cannot be opened.`,
      remedy: "It may be damaged. Use PNG, JPEG, WebP or GIF.",
    };
  } finally {
    URL.revokeObjectURL(url);
  }
}

async function open(url) {
  const image = new Image();
  image.src = url;
  await image.decode();
  return image;
}

function redraw(image, margins) {
  const scale = Math.min(1, MAX_SIDE / Math.max(image.naturalWidth, image.naturalHeight));
  const [width, height] = [image.naturalWidth, image.naturalHeight].map((side) =>
    Math.max(1, Math.round(side * scale)),
  );
  const side = Math.max(width, height), canvas = margins ? sheet(side, side) : sheet(width, height);
  const pen = canvas.getContext("2d", { willReadFrequently: true }),
    [left, top] = [(canvas.width - width) / 2, (canvas.height - height) / 2].map(Math.floor);
  pen.fillStyle = "white"; // white under transparency
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(image, left, top, width, height);
  if (margins) {
    const drawn = pen.getImageData(left, top, width, height);
    pen.fillStyle = `rgb(${background(drawn.data, width, height).join(" ")})`;
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.putImageData(drawn, left, top);
  }
  return canvas.toDataURL("image/png");
}

function sheet(width, height) {
  return Object.assign(document.createElement("canvas"), { width, height });
}

/** Return the most frequent colour along the edge, as [red, green, blue]: the image's background. Pure.
 *  @param {Uint8ClampedArray} pixels  red, green, blue, alpha */
export function background(pixels, width, height) {
  const counts = new Map();
  for (let i = 0; i < width * height; i += 1) {
    const x = i % width, y = Math.floor(i / width);
    if (x && y && x < width - 1 && y < height - 1) continue;
    const at = 4 * i, key = (pixels[at] >> 3) * 1024 + (pixels[at + 1] >> 3) * 32 + (pixels[at + 2] >> 3);
    const sum = counts.get(key) ?? [0, 0, 0, 0];
    for (const c of [0, 1, 2]) sum[c] += pixels[at + c];
    sum[3] += 1;
    counts.set(key, sum);
  }
  const most = [...counts.values()].reduce((a, b) => (b[3] > a[3] ? b : a), [255, 255, 255, 0]);
  return most.slice(0, 3).map((v) => Math.round(v / Math.max(1, most[3])));
}

/** Return the image with patches hidden (painted in its background colour) or blurred.
 *  @param {string} url  @param {Map<number, "hide"|"blur">} edits  by patch  @returns {Promise<string>} a data-URL */
export async function edited(url, edits, rows, cols) {
  if (!edits.size) return url;
  const image = await open(url), { naturalWidth: width, naturalHeight: height } = image;
  const canvas = sheet(width, height),
    pen = canvas.getContext("2d", { willReadFrequently: true }),
    small = sheet(2, 2),
    dab = small.getContext("2d");
  pen.drawImage(image, 0, 0);
  const ground = `rgb(${background(pen.getImageData(0, 0, width, height).data, width, height).join(" ")})`;
  for (const [patch, how] of edits) {
    const x = Math.floor(((patch % cols) * width) / cols),
      y = Math.floor((Math.floor(patch / cols) * height) / rows),
      w = Math.ceil(width / cols),
      h = Math.ceil(height / rows);
    pen.fillStyle = ground;
    if (how === "hide") pen.fillRect(x, y, w, h);
    else {
      dab.drawImage(image, x, y, w, h, 0, 0, 2, 2);
      pen.drawImage(small, 0, 0, 2, 2, x, y, w, h);
    }
  }
  return canvas.toDataURL("image/png");
}

/** Return the first image among pasted or dropped files, or null. @param {DataTransfer} transfer */
export function imageOf(transfer) {
  return [...(transfer?.files ?? [])].find((file) => file.type.startsWith("image/")) ?? transfer?.files?.[0] ?? null;
}

/** Return the clipboard's image. @throws {{message: string, remedy: string}} */
export async function clipboardImage() {
  const remedy = "Copy an image, then press Ctrl+V (⌘V) on this page.";
  const items = await navigator.clipboard?.read?.().catch(() => null);
  if (!items) throw { message: "The browser does not give access to the clipboard.", remedy };
  for (const item of items) {
    const type = item.types.find((t) => t.startsWith("image/"));
    if (type) return new File([await item.getType(type)], "the clipboard's image", { type });
  }
  throw { message: "There is no image in the clipboard.", remedy };
}
