// What a finding's cause says, as facts and tables.

import type {
  FindingCause,
  FindingCode,
  FindingFunction,
  FindingMeasure,
  FindingOwner,
} from "../api/client";
import { percent } from "./units";

// A fact, and what of the page shows more of it.
export interface Evidence {
  title: string;
  text: string;
  vm?: string;
  code?: FindingCode;
}

export interface Cause {
  facts: Evidence[];
  functions: FindingFunction[];
  owners: { name: string; vm?: string; cpus: number }[];
}

export const cpus = (value: number): string =>
  `${value.toFixed(value !== 0 && Math.abs(value) < 0.1 ? 3 : 2)} CPUs`;

// A value of what is measured: VM exits are counted, all else is a share.
export const measured = (measure: FindingMeasure, value: number): string =>
  measure.kind === "exits"
    ? `${value.toFixed(0)} for each vCPU and second`
    : percent(value, 1, value !== 0 && Math.abs(value) < 0.01 ? 3 : 1);

function named(owner: FindingOwner): { name: string; vm?: string } {
  switch (owner.kind) {
    case "vm":
      return { name: `VM ${owner.name}`, vm: owner.name };
    case "process":
      return { name: `process ${owner.name}` };
    case "kernel-thread":
      return { name: `kernel thread ${owner.name}` };
    case "idle":
      return { name: "idle" };
    case "unknown":
      return { name: "[unknown]" };
  }
}

const fact = (title: string, text: string, more: Partial<Evidence> = {}): Evidence => ({
  title,
  text,
  ...more,
});
const functionFact = (code: FindingCode) => fact("Function", code.function, { code });

export function evidenceOf(cause: FindingCause): Cause {
  const only = (...facts: Evidence[]): Cause => ({ facts, functions: [], owners: [] });
  switch (cause.kind) {
    case "thief": {
      const { name, vm } = named(cause.owner);
      const facts = [
        fact("Thief", name, vm === undefined ? {} : { vm }),
        fact("Its part of the additional steal type 1", percent(cause.part, 1, 0)),
        ...(cause.is_new ? [fact("New", "it was not there before")] : []),
      ];
      return { ...only(...facts), functions: cause.functions };
    }
    case "overcommitted": {
      const facts = [
        fact("CPUs wanted", cause.wanted_cpus.toFixed(2)),
        fact("CPUs there", String(cause.cpus)),
        ...(cause.arrived_vm
          ? [fact("VM that arrived", cause.arrived_vm, { vm: cause.arrived_vm })]
          : []),
      ];
      return {
        ...only(...facts),
        owners: cause.owners.map(({ owner, cpus }) => ({ ...named(owner), cpus })),
      };
    }
    case "quota":
      return only(
        fact("It wanted", cpus(cause.wanted_cpus)),
        fact("Its quota gave it", cpus(cause.got_cpus)),
      );
    case "exits": {
      const rate =
        cause.per_s > 0
          ? [fact("More exits", `${cause.per_s.toFixed(0)} for each vCPU and second`)]
          : [];
      return { ...only(fact("Exit reason", cause.reason), ...rate), functions: cause.functions };
    }
    case "halt-polling":
      return only(fact("Cause", "the guest halts for shorter than the host polls"));
    case "function":
      return only(
        functionFact(cause.code),
        ...(cause.caller ? [fact("Called by", cause.caller)] : []),
        ...(cause.is_lock ? [fact("Lock", "its threads wait for one another")] : []),
        ...(cause.is_new ? [fact("New", "it did not run before")] : []),
        ...(cause.build
          ? [fact("Build before", cause.build.before), fact("Build after", cause.build.after)]
          : []),
      );
    case "process":
      return only(
        fact("Process", cause.process),
        ...(cause.is_new ? [fact("New", "it did not run before")] : []),
      );
    case "kernel":
      return only(fact("Kernel before", cause.before), fact("Kernel after", cause.after));
    case "collection":
      return only(
        ...cause.counters.map(({ what, count }) => fact(what, count.toLocaleString("en"))),
      );
    case "silent":
      return only(fact("Cause", "nothing comes from the host any more"));
    case "unknown":
      return only(fact("Cause", "not known: the evidence does not say"));
  }
}
