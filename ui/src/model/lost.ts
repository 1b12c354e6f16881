// States in which a vCPU loses time. Made from crates/model/src/lost.rs: UPDATE=1 cargo test --workspace --test access

export const STOLEN_OUTSIDE: readonly string[] = ["steal_outside"];
export const STOLEN_VMM: readonly string[] = ["steal_vmm", "steal_vmm_waiting"];
export const THROTTLED: readonly string[] = ["throttled"];
export const STOLEN: readonly string[] = [...STOLEN_OUTSIDE, ...STOLEN_VMM];
