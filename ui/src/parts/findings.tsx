// What the server found: the cause of each finding, and on demand what changed and what to do.

import { type FindingEntry, findings } from "../api/client";
import { visible } from "../model/text";
import { iso } from "../model/place";
import { Section, Shown, useAnswer, useApp } from "./app";

// Of one host, of one VM, or of the fleet.
export function Findings(props: { host?: string; vm?: string }) {
  const { span } = useApp();
  const { host, vm } = props;
  const of = { ...(host === undefined ? {} : { host }), ...(vm === undefined ? {} : { vm }) };
  const key = `findings ${host} ${vm} ${span.from} ${span.to}`;
  const found = useAnswer(key, async (signal) => {
    const list = await findings(of, signal);
    const partial = list.late > 0 ? [`${list.late} windows came too late to be looked at`] : [];
    return { rows: list.findings.filter((finding) => isWithin(finding, span.from, span.to)), partial };
  });
  return (
    <Section title="Findings" about="What is not as it was, found by the server itself.">
      <Shown of={found} empty="Nothing was found in this time.">
        {(rows) => rows.map((finding) => <Finding key={finding.id} finding={finding} />)}
      </Shown>
    </Section>
  );
}

function isWithin(finding: FindingEntry, from: number, to: number): boolean {
  const over = finding.over_unix_s ?? Infinity;
  return finding.found_unix_s * 1000 < to && from <= over * 1000;
}

function Finding({ finding }: { finding: FindingEntry }) {
  const [cause = "", ...more] = finding.text.trimEnd().split("\n").map(visible);
  const where = visible(finding.places.join(", "));
  return (
    <details class="finding">
      <summary>
        <bdi>{where}</bdi>: <bdi>{cause}</bdi>{" "}
        <span class="faint">
          {finding.state === "open" ? "since" : "over; found at"} {iso(finding.found_unix_s * 1000).slice(0, 19).replace("T", " ")} UTC
        </span>
      </summary>
      <pre>{more.join("\n").trim()}</pre>
    </details>
  );
}
