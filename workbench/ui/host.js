// Runs once when Gradio mounts the page: gives the view modules a backend. `element`, `props`, `server`, `trigger`
// and `watch` are Gradio's; the events "decode" and "click" are wired in page.py.
(async () => {
  const root = element.querySelector(".wb") ?? element;
  const base = (window.gradio_config?.root ?? "").replace(/\/$/, "");
  const at = (path) => `${base}/gradio_api/file=${path}?v=${props.version}`;
  const style = document.head.appendChild(document.createElement("style"));
  const face = (family, file, weight) =>
    `@font-face{font-family:"${family}";font-weight:${weight};font-display:swap;src:url("${base}/static/fonts/${file}.woff2")}`;
  style.textContent = [ // the fonts come with Gradio: nothing is fetched from elsewhere
    face("Workbench Sans", "IBMPlexSans/IBMPlexSans-Regular", 400), face("Workbench Sans", "IBMPlexSans/IBMPlexSans-Bold", 600),
    face("Workbench Mono", "IBMPlexMono/IBMPlexMono-Regular", 400), face("Workbench Mono", "IBMPlexMono/IBMPlexMono-Bold", 700), props.palette,
  ].join("\n");
  const sheet = document.head.appendChild(document.createElement("link"));
  sheet.rel = "stylesheet";
  sheet.href = at(props.stylesheet);
  const styled = new Promise((done) => (sheet.onload = sheet.onerror = done));
  const names = Object.keys(props.modules);
  const loaded = await Promise.all(names.map((name) => import(at(props.modules[name]))));
  const modules = Object.fromEntries(names.map((name, i) => [name, loaded[i]]));
  await styled;
  const dark = localStorage.getItem("wb-theme");
  if (dark !== null) document.body.classList.toggle("dark", dark === "dark");
  await modules.live.mount(root, {
    modules,
    host: {
      call: (name, payload) => server[name](payload),
      decode: (request) => trigger("decode", request),
      listen: (hear) => (window.workbenchBus = hear),
      theme: () => localStorage.setItem("wb-theme", document.body.classList.toggle("dark") ? "dark" : "light"),
      remember: window.sessionStorage,
    },
  });
})();
