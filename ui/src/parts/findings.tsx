// What the server found: the cause of each finding, with a link to its evidence.

import { type FindingChange, type FindingEntry, findings } from "../api/client";
import { cut, visible } from "../model/text";
import { instant } from "../model/units";
import { Section, Shown, useAnswer, useApp, usePlaces } from "./app";
import { Name } from "./name";

// Of one host, of one VM, or of the fleet.
export function Findings(props: { host?: string; vm?: string }) {
  const { span } = useApp();
  const { host, vm } = props;
  const of = { ...(host === undefined ? {} : { host }), ...(vm === undefined ? {} : { vm }) };
  const key = `findings ${host} ${vm} ${span.from} ${span.to}`;
  const found = useAnswer(key, async (signal) => {
    const list = await findings(of, signal);
    const partial =
      list.late > 0
        ? [`${list.late} ${list.late === 1 ? "window" : "windows"} came too late to be looked at`]
        : [];
    return {
      rows: list.findings.filter((finding) => isWithin(finding, span.from, span.to)),
      partial,
    };
  });
  return (
    <Section title="Findings" about="What is not as it was, found by the server itself.">
      <Shown of={found} empty="Nothing was found in this time.">
        {(rows) => (
          <ul class="findings">
            {rows.map((finding) => (
              <Line key={finding.id} finding={finding} />
            ))}
          </ul>
        )}
      </Shown>
    </Section>
  );
}

function isWithin(finding: FindingEntry, from: number, to: number): boolean {
  const over = finding.over_unix_s ?? Infinity;
  return finding.found_unix_s * 1000 < to && from <= over * 1000;
}

function Line({ finding }: { finding: FindingEntry }) {
  const to = usePlaces();
  const began = Math.min(
    finding.found_unix_s,
    ...finding.changes.map(({ since_unix_s }) => since_unix_s),
  );
  const state = finding.state === "open" ? "since" : "over; began at";
  return (
    <li class={`finding ${finding.state}`}>
      <Name name={finding.places.join(", ") || "the fleet"} length={80} />:{" "}
      <Name name={finding.summary} length={300} href={to(["finding", finding.id])} />{" "}
      <span class="faint">
        {state} {instant(began * 1000)}, found at {instant(finding.found_unix_s * 1000)}
        {handled(finding).map(([name, value]) => (
          <bdi key={name}>
            ; {name.toLowerCase()} {value}
          </bdi>
        ))}
      </span>
    </li>
  );
}

// Where something changed: a host, or one of its VMs.
export const placeOf = ({ host, vm }: FindingChange): string =>
  vm === undefined ? (host ?? "the fleet") : `${host}/${vm}`;

// Who looks after it, until when no message is sent, and which ones a receiver refused.
export function handled({ acknowledged, silenced, refused }: FindingEntry): [string, string][] {
  const because = (note: string) => (note === "" ? "" : ` (${visible(cut(note, 200))})`);
  return [
    ...(acknowledged
      ? [
          [
            "Acknowledged",
            `by ${visible(acknowledged.by)}, ${instant(1000 * acknowledged.unix_s)}${because(acknowledged.note)}`,
          ] as [string, string],
        ]
      : []),
    ...(silenced
      ? [
          [
            "Silenced",
            `by ${visible(silenced.by)} until ${instant(1000 * silenced.until_unix_s)}${because(silenced.note)}`,
          ] as [string, string],
        ]
      : []),
    ...(refused ?? []).map(
      ({ event, receiver, unix_s, reason }) =>
        [
          "Not sent",
          `${event}: refused by ${visible(receiver)}, ${instant(1000 * unix_s)}${because(reason)}`,
        ] as [string, string],
    ),
  ];
}
