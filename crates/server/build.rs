//! Puts the web page into the program: the files of `ui/dist`, if `make ui` has built them.

use std::fmt::Write;
use std::path::Path;
use std::{fs, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ui/dist");
    println!("cargo::rerun-if-changed={}", dist.display());
    let mut names: Vec<String> = Vec::new();
    for entry in fs::read_dir(&dist).into_iter().flatten() {
        names.extend(entry?.file_name().into_string());
    }
    // Each file has a compressed one beside it.
    names.retain(|name| names_a_page_file(name) && dist.join(format!("{name}.gz")).is_file());
    names.sort_unstable();
    let mut list = "&[\n".to_owned();
    for name in &names {
        let (plain, gzip) = (dist.join(name), dist.join(format!("{name}.gz")));
        let file = format!(
            "    PageFile {{ name: {name:?}, plain: include_bytes!({plain:?}), gzip: include_bytes!({gzip:?}) }},\n"
        );
        list.write_str(&file).map_err(io::Error::other)?;
    }
    let out = std::env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("no OUT_DIR"))?;
    fs::write(Path::new(&out).join("page_files.rs"), list + "]\n")
}

fn names_a_page_file(name: &str) -> bool {
    [".html", ".js", ".css", ".txt"].iter().any(|end| name.ends_with(end))
}
