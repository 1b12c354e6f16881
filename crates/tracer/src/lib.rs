//! The trace probes (`bpf/tracer.bpf.c`), in a host or in a guest: loading, attaching, draining their rings.

#![cfg_attr(test, allow(clippy::unwrap_used))]
