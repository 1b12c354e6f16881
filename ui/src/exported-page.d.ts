// The components of exported pages: crates/export/src/page/common.js and flame.js.

declare module "exported-page" {
  import type { FlameData } from "./model/profile";

  export interface FlameOptions {
    amount?: (total: number) => string;
    paint?: (node: number) => string | undefined;
    remark?: (node: number) => string;
    signal?: AbortSignal;
  }
  // Returns what searches for a text.
  export function flameGraph(
    box: HTMLElement,
    data: FlameData,
    options?: FlameOptions,
  ): (text: string) => void;
  export function colour(name: string): string;
  export function onNewColours(act: () => void, signal: AbortSignal): void;
}
