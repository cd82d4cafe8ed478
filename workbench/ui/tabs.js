// Runs once in a hidden component next to the tabs, and opens the tab that the address names. The views' own header
// replaces Gradio's row of tabs, whose buttons are pressed only by this script.
(() => {
  /** @returns {HTMLElement | null} */
  const button = (tab) => document.querySelector(`#wb-views button[role="tab"][data-tab-id="${tab}"]`);
  const tabOfAddress = () => {
    if (/\/r\/[^/]*\+[^/]*$/.test(location.pathname)) return "pair"; // address of two runs side by side
    const tab = new URLSearchParams(location.search).get("tab");
    return props.tabs.includes(tab) ? tab : "live";
  };
  const name = document.title,
    addresses = {},
    home = location.pathname.replace(/\/r\/[^/]+$/, "/"); // a run's address is below the page's
  const show = (tab) => {
    if (!button(tab)) return;
    tabs.open = tab;
    button(tab).click();
    document.title = tab === "live" ? name : `${button(tab).textContent.trim()} · ${name}`;
    dispatchEvent(new CustomEvent("wb:tab", { detail: tab }));
  };
  const tabs = (window.workbenchTabs = {
    open: "live",
    // Open a tab in its last state.
    go: (tab) => {
      if (tab === tabs.open || !button(tab)) return;
      addresses[tabs.open] = location.pathname + location.search;
      history.pushState({}, "", addresses[tab] ?? home + (tab === "live" ? "" : `?tab=${tab}`));
      show(tab);
      scrollTo(0, 0);
    },
    // Write the state of a tab into the address; if the tab is not open, store it until it is.
    write: (tab, address) => {
      if (tab === tabs.open) history.replaceState(history.state, "", address);
      else addresses[tab] = address;
    },
  });
  // Gradio may return to its first tab while it is still mounting.
  const again = () => button(tabs.open)?.getAttribute("aria-selected") === "false" && button(tabs.open).click();
  const begin = () => {
    if (!button("live")) return setTimeout(begin, 50); // Gradio sometimes mounts this component before the tabs
    new MutationObserver(again).observe(document.getElementById("wb-views"), {
      subtree: true,
      attributes: true,
      attributeFilter: ["aria-selected"],
    });
    addEventListener("popstate", () => {
      if (tabOfAddress() !== tabs.open) show(tabOfAddress());
      dispatchEvent(new CustomEvent("wb:address")); // the open tab loads the state of this history entry
    });
    if (tabOfAddress() !== "live") show(tabOfAddress());
  };
  begin();
  // At this address Gradio marks its API page as open without showing it: press the button twice, to close and to open
  // it.
  const api = () => {
    const button = /** @type {HTMLElement | null} */ (document.querySelector("footer .show-api"));
    if (!button) return setTimeout(api, 200);
    button.click();
    setTimeout(() => button.click(), 200);
  };
  if (new URLSearchParams(location.search).get("view") === "api") api();
})();
