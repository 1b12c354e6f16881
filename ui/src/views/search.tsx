// Hosts, VMs and functions of the whole fleet by a part of their names.

import { type Found, search } from "../api/questions";
import { Name } from "../parts/name";
import { Section, Shown, useAnswer, useApp, usePlaces } from "../parts/app";
import { DataTable, timeColumn } from "../parts/table";

export function Search() {
  const { place, span } = useApp();
  const to = usePlaces();
  const wanted = place.more["q"] ?? "";
  const found = useAnswer(JSON.stringify([wanted, span]), (signal) =>
    wanted ? search(wanted, span, signal) : Promise.resolve({ rows: [], partial: [] }),
  );
  const href = ({ kind, host, name, module }: Found) =>
    kind === "host"
      ? to(["host", name])
      : kind === "VM"
        ? to(["vm", host ?? "", name])
        : to(["function"], { name, ...(module === null ? {} : { module }) });
  return (
    <>
      <h1>
        Search: <Name name={wanted} />
      </h1>
      <Shown
        of={found}
        empty={wanted ? "Nothing of this name ran in this time." : "Enter a part of a name above."}
      >
        {(rows) =>
          (["host", "VM", "function"] as const).map((kind) => {
            const some = rows.filter((row) => row.kind === kind);
            if (some.length === 0) return null;
            return (
              <Section key={kind} title={{ host: "Hosts", VM: "VMs", function: "Functions" }[kind]}>
                <DataTable
                  label={`${kind}s found`}
                  rows={some}
                  columns={[
                    {
                      title: "Name",
                      value: (row) => row.name,
                      cell: (row) => <Name name={row.name} href={href(row)} />,
                    },
                    ...(kind === "VM"
                      ? [
                          {
                            title: "Host",
                            value: (row: Found) => row.host ?? "",
                            cell: (row: Found) => <Name name={row.host ?? "-"} />,
                          },
                        ]
                      : []),
                    ...(kind === "function"
                      ? [
                          {
                            title: "Module",
                            value: (row: Found) => row.module ?? "",
                            cell: (row: Found) => <Name name={row.module ?? "-"} />,
                          },
                        ]
                      : []),
                    ...(kind === "host"
                      ? []
                      : [
                          timeColumn(
                            kind === "VM" ? "vCPU time" : "Corrected time",
                            some,
                            (row: Found) => row.ns,
                          ),
                        ]),
                  ]}
                />
              </Section>
            );
          })
        }
      </Shown>
    </>
  );
}
