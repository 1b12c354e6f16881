//! Writes made-up traces into a folder, to look at or to feed to other tools: `trace.perfetto` of a small one,
//! `make.perfetto`, `make.html` and `compare.html` of a made-up `make`, `hostile.html` of one whose names are markup.
//!
//! `cargo run -p export --example write_trace -- DIR [FILES]`

#![allow(clippy::unwrap_used)]

#[path = "../tests/export/trace/drawn.rs"]
#[allow(dead_code)]
mod drawn;
#[path = "../tests/export/trace/make.rs"]
mod make;

use std::fs::File;
use std::path::PathBuf;

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().expect("the folder to write to"));
    let files = args.next().map_or(40, |files| files.parse().unwrap());
    let create = |name: &str| File::create(dir.join(name)).unwrap();
    let small = drawn::small();
    export::trace::perfetto::write(small.run("small"), create("trace.perfetto")).unwrap();
    export::trace::html::write(&[small.run("small")], create("small.html")).unwrap();
    let markup = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>";
    let hostile = drawn::hostile(markup);
    export::trace::html::write(&[hostile.run(markup)], create("hostile.html")).unwrap();
    let (one, four) = (make::make(1, files), make::make(4, files));
    export::trace::perfetto::write(four.run("make -j4"), create("make.perfetto")).unwrap();
    export::trace::html::write(&[four.run("make -j4")], create("make.html")).unwrap();
    let both = [one.run("make -j1"), four.run("make -j4")];
    export::trace::html::write(&both, create("compare.html")).unwrap();
}
