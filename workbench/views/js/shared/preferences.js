/** Preferences of the reader that are on or off, stored in this browser. */

/** Return a preference. @param {string} name  @param {boolean} fallback  without a stored choice
 *  @param {Pick<Storage, "getItem">} [storage] */
export function isOn(name, fallback, storage) {
  try {
    const stored = (storage ?? localStorage).getItem(name);
    return stored === null ? fallback : stored === "on";
  } catch {
    return fallback; // the browser may block storage
  }
}

/** Store a preference. @param {Pick<Storage, "setItem">} [storage] */
export function set(name, on, storage) {
  try {
    (storage ?? localStorage).setItem(name, on ? "on" : "off");
  } catch {
    // without storage it holds for this page only
  }
}
