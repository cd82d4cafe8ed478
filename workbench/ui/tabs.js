// Runs once in a hidden component beside the tabs: the address says which one is open. The views' own header takes the
// place of Gradio's row of tabs, which is only pressed from here.
(() => {
  /** @returns {HTMLElement | null} */
  const button = (tab) => document.querySelector(`#wb-views button[role="tab"][data-tab-id="${tab}"]`);
  const tabOfAddress = () => {
    if (/\/r\/[^/]*\+[^/]*$/.test(location.pathname)) return "pair"; // two runs have an address of their own
    const tab = new URLSearchParams(location.search).get("tab");
    return props.tabs.includes(tab) ? tab : "live";
  };
  const name = document.title,
    addresses = {},
    home = location.pathname.replace(/\/r\/[^/]+$/, "/"); // an address of a run is the page's, too
  const show = (tab) => {
    if (!button(tab)) return;
    tabs.open = tab;
    button(tab).click();
    document.title = tab === "live" ? name : `${button(tab).textContent.trim()} · ${name}`;
    dispatchEvent(new CustomEvent("wb:tab", { detail: tab }));
  };
  const tabs = (window.workbenchTabs = {
    open: "live",
    // Open a tab as it was left.
    go: (tab) => {
      if (tab === tabs.open || !button(tab)) return;
      addresses[tabs.open] = location.pathname + location.search;
      history.pushState({}, "", addresses[tab] ?? home + (tab === "live" ? "" : `?tab=${tab}`));
      show(tab);
      scrollTo(0, 0);
    },
    // Say in the address what a tab shows; one that is not open says it when it is opened again.
    write: (tab, address) => {
      if (tab === tabs.open) history.replaceState(history.state, "", address);
      else addresses[tab] = address;
    },
  });
  // While it is still mounting, Gradio may go back to its first tab.
  const again = () => button(tabs.open)?.getAttribute("aria-selected") === "false" && button(tabs.open).click();
  const begin = () => {
    if (!button("live")) return setTimeout(begin, 50); // now and then Gradio mounts this component before the tabs
    new MutationObserver(again).observe(document.getElementById("wb-views"), {
      subtree: true,
      attributes: true,
      attributeFilter: ["aria-selected"],
    });
    addEventListener("popstate", () => {
      if (tabOfAddress() !== tabs.open) show(tabOfAddress());
      dispatchEvent(new CustomEvent("wb:address")); // the open tab shows what this entry of the history says
    });
    if (tabOfAddress() !== "live") show(tabOfAddress());
  };
  begin();
  // Gradio takes its API page for open at this address, but shows it only when its button is pressed: closed, then
  // opened.
  const api = () => {
    const button = /** @type {HTMLElement | null} */ (document.querySelector("footer .show-api"));
    if (!button) return setTimeout(api, 200);
    button.click();
    setTimeout(() => button.click(), 200);
  };
  if (new URLSearchParams(location.search).get("view") === "api") api();
})();
