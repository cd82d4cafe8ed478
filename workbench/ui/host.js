// Runs once when Gradio mounts a view: loads its modules, then mounts the view. `element`, `props`, `server`,
// `trigger` and `watch` are Gradio's; the event "decode" is wired in hosting.py.
(async () => {
  const root = element.querySelector(".wb") ?? element,
    { tab } = props;
  for (let around = root.parentElement; around; around = around.parentElement) around.classList.add("has-wb");
  // same as in tabs.js
  const tabOfAddress = () => {
    if (/\/r\/[^/]*\+[^/]*$/.test(location.pathname)) return "pair";
    const name = new URLSearchParams(location.search).get("tab");
    return props.tabs.includes(name) ? name : "live";
  };
  if (tab && tabOfAddress() !== tab)
    await new Promise((done) => addEventListener("wb:tab", ({ detail }) => detail === tab && done()));
  const base = (window.gradio_config?.root ?? "").replace(/\/(gallery|learn|methods|verifiers)?\/?$/, "");
  const at = (path) => `${base}/workbench/${props.version}/${path}`;
  const face = (family, file, weight) =>
    `@font-face{font-family:"${family}";font-weight:${weight};font-display:swap;src:url("${base}/static/fonts/${file}.woff2")}`;
  if (!document.getElementById("wb-palette")) {
    const style = Object.assign(document.createElement("style"), { id: "wb-palette" });
    style.textContent = [
      // these fonts are part of Gradio, so nothing is fetched from another host
      face("Workbench Sans", "IBMPlexSans/IBMPlexSans-Regular", 400),
      face("Workbench Sans", "IBMPlexSans/IBMPlexSans-Bold", 600),
      face("Workbench Mono", "IBMPlexMono/IBMPlexMono-Regular", 400),
      props.palette,
    ].join("\n");
    document.head.append(style);
  }
  const styled = props.stylesheets
    .map(at)
    .filter((href) => !document.querySelector(`link[href="${href}"]`))
    .map(
      (href) =>
        new Promise((done) => {
          document.head.append(
            Object.assign(document.createElement("link"), { rel: "stylesheet", href, onload: done, onerror: done }),
          );
        }),
    );
  const [view, address] = await Promise.all([import(at(props.module)), import(at("js/shared/address.js"))]);
  await Promise.all(styled);
  const theme = localStorage.getItem("wb-theme");
  if (theme !== null) document.body.classList.toggle("dark", theme === "dark");
  const listeners = (window.workbenchListeners ??= []),
    tabs = () => window.workbenchTabs;
  const full = (query) => (tab && tab !== "live" ? [`tab=${tab}`, query].filter(Boolean).join("&") : query);
  // Absolute paths: a query alone would be resolved against the page's base URL.
  const addressOf = (query) =>
    tab
      ? address.write(address.home(location.pathname), address.brief(full(query)))
      : `${location.pathname}${query ? `?${address.brief(query)}` : ""}`;
  await view.mount(root, {
    host: {
      base,
      call: (name, payload) => server[name](payload),
      sources: async () => (await fetch(at(props.replay))).json(),
      decode: (request) => trigger("decode", request),
      listen: (listener) => {
        listeners.push(listener);
        window.workbenchBus ??= (message) => listeners.forEach((each) => each(message));
      },
      theme: () => localStorage.setItem("wb-theme", document.body.classList.toggle("dark") ? "dark" : "light"),
      remember: tab ? window.sessionStorage : window.localStorage,
      go: tab ? (to) => tabs().go(to) : undefined,
      isOpen: () => !tab || tabs().open === tab,
      address: {
        read: () => (tab ? address.read(location) : location.search),
        write: (query) =>
          tab ? tabs().write(tab, addressOf(query)) : history.replaceState(history.state, "", addressOf(query)),
        url: (query) => `${location.origin}${addressOf(query)}`,
      },
    },
  });
})();
