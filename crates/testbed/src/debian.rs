//! Guest roots with Debian packages: a minimal Debian and what a scenario asks for, built once as a disk
//! image and kept in the cache. Never installed here, and nothing of it runs as this machine's root but
//! the packages' own scripts, confined to the image's folder.

use std::path::PathBuf;

use crate::cache::{Cache, Key};
use crate::error::Error;
use crate::process;

/// What is left out of every package: it is not read in a guest.
const LEFT_OUT: &[&str] = &["/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/man/*"];

/// The image with these packages, from the cache.
pub(crate) fn image(cache: &Cache, packages: &[String]) -> Result<PathBuf, Error> {
    let sources = sources()?;
    let mut key = Key::new("debian-root");
    for word in [packages, &sources.lines].concat() {
        key.add(word.as_bytes());
    }
    let folder = cache.folder(&key, |folder| {
        let mut command = process::tool("mmdebstrap", "mmdebstrap genext2fs uidmap")?;
        command.args(["--quiet", "--variant=minbase", "--format=ext2"]);
        command.arg(format!("--include={}", packages.join(",")));
        command.args(LEFT_OUT.iter().map(|path| format!("--dpkgopt=path-exclude={path}")));
        command.arg(&sources.release).arg(folder.join(FILE)).args(&sources.lines);
        process::run(&mut command).map(drop)
    })?;
    Ok(folder.join(FILE))
}

const FILE: &str = "root.img";

/// Where this machine gets its own Debian from.
#[derive(Debug, PartialEq)]
struct Sources {
    release: String,
    /// As in `sources.list`.
    lines: Vec<String>,
}

fn sources() -> Result<Sources, Error> {
    let mut apt = process::tool("apt-get", "apt")?;
    apt.args(["indextargets", "--format", "$(REPO_URI) $(CODENAME) $(COMPONENT)"]);
    let output = process::run(apt.args(["Identifier: Packages", "Origin: Debian"]))?;
    parse(&String::from_utf8_lossy(&output)).ok_or(Error::NoDebian)
}

/// Reads lines of `URI CODENAME COMPONENT`. The release is the one that others are named after: security
/// fixes come as `RELEASE-security`. Backports are left out.
fn parse(text: &str) -> Option<Sources> {
    let triples: Vec<[&str; 3]> = text
        .lines()
        .filter_map(|line| line.split_whitespace().collect::<Vec<_>>().try_into().ok())
        .collect();
    let release = triples.iter().map(|[_, name, _]| *name).find(|name| !name.contains('-'))?;
    let wanted = |name: &str| {
        name.strip_prefix(release).is_some_and(|rest| ["", "-updates", "-security"].contains(&rest))
    };
    let mut lines: Vec<String> = triples
        .iter()
        .filter(|[_, name, component]| wanted(name) && *component == "main")
        .map(|[uri, name, component]| format!("deb {uri} {name} {component}"))
        .collect();
    lines.sort();
    lines.dedup();
    Some(Sources { release: release.to_owned(), lines })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Option<(&str, &[&str])>) {
        let expected = expected.map(|(release, lines)| Sources {
            release: release.to_owned(),
            lines: lines.iter().map(|&line| line.to_owned()).collect(),
        });
        assert_eq!(parse(text), expected);
    }

    #[test]
    fn sources_of_this_release() {
        check(
            "\
http://mirror/debian/ bookworm main
http://mirror/debian/ bookworm contrib
http://mirror/debian/ bookworm-backports main
http://mirror/debian/ bookworm-updates main
http://mirror/security/ bookworm-security main
",
            Some((
                "bookworm",
                &[
                    "deb http://mirror/debian/ bookworm main",
                    "deb http://mirror/debian/ bookworm-updates main",
                    "deb http://mirror/security/ bookworm-security main",
                ],
            )),
        );
        check(
            "http://mirror/debian/ trixie main\n",
            Some(("trixie", &["deb http://mirror/debian/ trixie main"])),
        );
        check("http://mirror/debian/ trixie-backports main\n", None);
        check("", None);
    }
}
