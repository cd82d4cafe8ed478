// What modules put into the window for each other and for the host.
interface Window {
  Plotly: any;
  gradio_config?: { root?: string };
  workbenchBus: (message: any) => void;
  workbenchListeners: ((message: any) => void)[];
  workbenchPair: { name: string; trace: any }[] | null;
  workbenchPicture: () => { url: string; alt: string };
  workbenchTabs: { open: string; go: (tab: string) => void; write: (tab: string, address: string) => void };
  workbenchTrace: any;
}

interface WindowEventMap {
  "wb:tab": CustomEvent<string>;
}

// What Gradio gives to the script of a component: `workbench/ui/host.js` is one.
declare const element: HTMLElement;
declare const props: { tab: string; tabs: string[]; version: string; palette: string; replay: string; module: string; stylesheets: string[] };
declare const server: Record<string, (payload: any) => Promise<any>>;
declare const trigger: (event: string, payload: any) => void;
