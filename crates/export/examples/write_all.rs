//! Writes a small made-up profile in every format into a folder, to look at or to feed to other tools, and
//! prints its number of samples.
//!
//! `cargo run -p export --example write_all -- DIR [hostile]`

#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "../tests/export/drawn.rs"]
#[allow(dead_code)]
mod drawn;
#[path = "../tests/export/fixture.rs"]
mod fixture;

use std::fs::File;
use std::path::PathBuf;

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().expect("the folder to write to"));
    let (flow, drawing) = match args.next() {
        Some(_) => (fixture::hostile(), drawn::hostile(fixture::HOSTILE[0])),
        None => (fixture::small(), drawn::small()),
    };
    let notes = fixture::notes();
    let about = export::About { view: "unified view", notes: &notes };
    let create = |name: &str| File::create(dir.join(name)).unwrap();
    export::folded::write(&flow, create("profile.folded")).unwrap();
    export::pprof::write(&flow, about, create("profile.pb.gz")).unwrap();
    export::firefox::write(&flow, create("profile.json.gz")).unwrap();
    export::html::write(&flow, drawing.chart(), about, create("flamegraph.html")).unwrap();
    export::perfetto::write(drawing.chart(), about, create("trace.perfetto")).unwrap();
    println!("{}", flow.samples.len());
}
