//! Copies a recording, with names that a hostile guest or host process could have, to test what shows them.
//!
//! `cargo run -p recording --example hostile_names -- FROM TO`

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::PathBuf;

use model::{CpuId, SymbolName};
use recording::{Recording, Writer, encode};

/// Markup, escapes of terminals, text that runs backwards, what can't be seen.
const EVIL: &str =
    "<img src=x onerror=alert(1)>\u{1b}[31m\u{202e}gpj.exe\u{2066}\u{200b}'\"\\&amp;\r\n</script>";

fn main() {
    let mut folders = std::env::args().skip(1).map(PathBuf::from);
    let (from, to) = (folders.next().expect("FROM"), folders.next().expect("TO"));
    let mut recording = Recording::open(&from).unwrap();
    let long = format!("{EVIL}{}", "long\u{202e}".repeat(1400));
    let tables = &mut recording.tables;
    for (number, vm) in tables.vms.iter_mut().enumerate() {
        vm.name = match number {
            1 => String::new(),
            2 => "unbroken".repeat(512),
            _ => format!("{number}{EVIL}"),
        };
    }
    for (number, image) in tables.images.iter_mut().enumerate() {
        image.name = format!("{number}{EVIL}");
    }
    tables.threads.iter_mut().for_each(|thread| thread.name = EVIL.to_owned());
    tables.modules.iter_mut().for_each(|module| module.path = format!("/{EVIL}"));
    for (number, symbol) in tables.symbols.iter_mut().enumerate() {
        symbol.name = SymbolName::Function(format!("{number}{long}"));
    }
    let writer = Writer::create(&to, &recording.header).unwrap();
    let mut samples: BTreeMap<CpuId, Vec<_>> = BTreeMap::new();
    recording
        .for_each_batch(&mut |batch| {
            batch.iter().for_each(|sample| samples.entry(sample.cpu).or_default().push(*sample));
        })
        .unwrap();
    for (cpu, samples) in samples {
        let mut spool = writer.spool(cpu).unwrap();
        spool.append(&samples.iter().flat_map(encode).collect::<Vec<_>>()).unwrap();
    }
    writer.finish(&recording.header, &recording.tables).unwrap();
}
