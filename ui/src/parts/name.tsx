import { useState } from "preact/hooks";
import { cut, visible } from "../model/text";

const LENGTH = 72;

// A name from elsewhere, as text. A long one is cut, with the whole of it on demand.
export function Name(props: { name: string; href?: string; length?: number }) {
  // The name that is shown whole: the next one in its place is not.
  const [shownWhole, setShownWhole] = useState<string | null>(null);
  const isWhole = shownWhole === props.name;
  const whole = props.name === "" ? "[no name]" : visible(props.name);
  const short = cut(whole, props.length ?? LENGTH);
  const text = (
    <bdi class={`name ${isWhole ? "whole" : short.length < 25 ? "short" : ""}`}>
      {isWhole ? whole : short}
    </bdi>
  );
  return (
    <>
      {props.href === undefined ? text : <a href={props.href}>{text}</a>}
      {short !== whole && (
        <button
          type="button"
          class="more"
          aria-expanded={isWhole}
          onClick={() => setShownWhole(isWhole ? null : props.name)}
        >
          {isWhole ? "less" : `all ${whole.length} characters`}
        </button>
      )}
    </>
  );
}
