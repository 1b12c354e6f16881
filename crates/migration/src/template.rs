//! The command line that starts the QEMU of a VM that comes: an administrator's, never a peer's.
//!
//! ```text
//!  qemu -name web -object memory-backend-ram,id=pc.ram,size=8G,{numa} -machine q35,memory-backend=pc.ram ...
//!    planned:      host-nodes=2,policy=bind,prealloc=on            + -incoming defer -qmp unix:...
//!    not planned:  policy=default
//! ```

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{self, Deserializer};

/// Where the memory's place goes.
pub(crate) const NUMA: &str = "{numa}";
/// Words of a command line at most, and bytes of them all.
const MAX_WORDS: usize = 1024;
const MAX_BYTES: usize = 64 << 10;
/// The daemon chooses when these begin.
const OWN_OPTIONS: &[&str] = &["-incoming", "-S", "-daemonize", "-preconfig"];

/// A command line with a place for where memory is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    words: Vec<String>,
}

/// Where a VM's memory is to be allocated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Where the kernel likes.
    Anywhere,
    /// On these nodes.
    Bound { nodes: Vec<u32>, prealloc: bool },
}

impl Template {
    /// Of words.
    ///
    /// # Errors
    /// When it names no program, or has options that the daemon gives.
    pub fn new(words: Vec<String>) -> Result<Self, String> {
        if words.first().is_none_or(String::is_empty) {
            return Err("command names no program".to_owned());
        }
        let bytes: usize = words.iter().map(String::len).sum();
        if MAX_WORDS < words.len() || MAX_BYTES < bytes {
            return Err(format!("command: {MAX_WORDS} words, {MAX_BYTES} bytes at most"));
        }
        let own = |word: &&String| {
            let option =
                word.strip_prefix("--").map_or(word.to_string(), |name| format!("-{name}"));
            OWN_OPTIONS.contains(&option.as_str())
        };
        match words.iter().find(own) {
            Some(word) => Err(format!("command: {word} must not be there")),
            None => Ok(Self { words }),
        }
    }

    /// A template for the VM that a running QEMU with this command line has, and what its administrator should look at.
    ///
    /// # Errors
    /// When it is no QEMU's.
    pub fn from_command_line(command_line: &[String]) -> Result<(Self, Vec<String>), String> {
        let (mut words, mut notes) = (Vec::new(), Vec::new());
        let mut size = None;
        let mut input = command_line.iter();
        while let Some(word) = input.next() {
            match word.as_str() {
                "-S" | "-daemonize" => continue,
                "-incoming" => {
                    input.next();
                    continue;
                }
                _ => {}
            }
            if words.last().is_some_and(|last| last == "-m") {
                size = Some(memory_size(word));
            }
            if word.contains("fd=") {
                notes.push(format!(
                    "{word}: descriptors are those of the running QEMU: name a path or an interface"
                ));
            }
            words.push(word.clone());
        }
        with_memory(&mut words, size, &mut notes);
        Ok((Self::new(words)?, notes))
    }

    /// The words, for a configuration file.
    #[must_use]
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// Whether it says where memory goes.
    pub(crate) fn places_memory(&self) -> bool {
        self.words.iter().any(|word| word.contains(NUMA))
    }

    /// The monitor that it names.
    pub(crate) fn monitor(&self) -> Option<PathBuf> {
        host::vms::monitor_path(&self.words)
    }

    /// The command line of a QEMU that waits for a VM, with a monitor at `monitor` if it has none of its own.
    pub(crate) fn command_line(&self, memory: &Memory, monitor: &Path) -> Vec<String> {
        let mut words: Vec<String> = self.words.iter().map(|word| filled(word, memory)).collect();
        words.extend(["-incoming", "defer"].map(str::to_owned));
        if self.monitor().is_none() {
            let path = monitor.display().to_string().replace(',', ",,");
            words.extend(["-qmp".to_owned(), format!("unix:{path},server=on,wait=off")]);
        }
        words
    }
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(Vec::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// An option's words, in QEMU's own form or as JSON.
fn filled(word: &str, memory: &Memory) -> String {
    let is_json = word.starts_with('{') && !word.starts_with(NUMA);
    let text = match memory {
        Memory::Anywhere if is_json => "\"policy\":\"default\"".to_owned(),
        Memory::Anywhere => "policy=default".to_owned(),
        Memory::Bound { nodes, prealloc } if is_json => {
            let nodes: Vec<String> = nodes.iter().map(u32::to_string).collect();
            let nodes = nodes.join(",");
            format!("\"host-nodes\":[{nodes}],\"policy\":\"bind\",\"prealloc\":{prealloc}")
        }
        Memory::Bound { nodes, prealloc } => {
            let nodes: String = nodes.iter().map(|node| format!("host-nodes={node},")).collect();
            format!("{nodes}policy=bind,prealloc={}", if *prealloc { "on" } else { "off" })
        }
    };
    word.replace(NUMA, &text)
}

/// Gives the memory a backend, if it has none, and a place in it for `{numa}`.
fn with_memory(words: &mut Vec<String>, size: Option<String>, notes: &mut Vec<String>) {
    let is_backend = |word: &String| {
        word.starts_with("memory-backend-") || word.contains("\"qom-type\":\"memory-backend-")
    };
    if words.iter().any(is_backend) {
        for word in words.iter_mut().filter(|word| is_backend(word)) {
            if word.starts_with('{') {
                notes.push(format!(
                    "{word}: put {NUMA} where its host-nodes, policy and prealloc are"
                ));
            } else {
                let rest = word.split(',').filter(|option| {
                    let key = option.split('=').next().unwrap_or_default();
                    !["host-nodes", "policy", "prealloc"].contains(&key)
                });
                *word = rest.chain([NUMA]).collect::<Vec<_>>().join(",");
            }
        }
        return;
    }
    // The name of the first gibibytes of x86 machines: the source's memory is called so, too.
    let size = size.unwrap_or_else(|| "128M".to_owned());
    let backend = format!("memory-backend-ram,id=pc.ram,size={size},{NUMA}");
    words.extend(["-object".to_owned(), backend]);
    let machine = words.iter().position(|word| word == "-machine" || word == "-M");
    match machine.and_then(|at| words.get_mut(at + 1)) {
        Some(machine) => machine.push_str(",memory-backend=pc.ram"),
        None => words.extend(["-machine", "memory-backend=pc.ram"].map(str::to_owned)),
    }
}

/// `-m 512`, `-m 2G`, `-m size=2G,slots=2`.
fn memory_size(option: &str) -> String {
    let size = option.split(',').find_map(|part| match part.split_once('=') {
        Some(("size", size)) => Some(size),
        Some(_) => None,
        None => Some(part),
    });
    let size = size.unwrap_or("128");
    if size.ends_with(|c: char| c.is_ascii_digit()) { format!("{size}M") } else { size.to_owned() }
}

#[cfg(test)]
mod test {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn memory_goes_where_it_is_planned() {
        let check = |memory: &Memory, line: &str, expected: &str| {
            let template = Template::new(words(line)).unwrap();
            let found = template.command_line(memory, Path::new("/run/a,b.qmp"));
            assert_eq!(found.join(" "), expected);
        };
        let bound = |nodes: &[u32]| Memory::Bound { nodes: nodes.to_vec(), prealloc: true };
        let own = " -incoming defer -qmp unix:/run/a,,b.qmp,server=on,wait=off";
        check(
            &bound(&[2]),
            "qemu -object ram,{numa}",
            &format!("qemu -object ram,host-nodes=2,policy=bind,prealloc=on{own}"),
        );
        check(
            &bound(&[0, 3]),
            "qemu -object {\"a\":1,{numa}}",
            &format!(
                "qemu -object {{\"a\":1,\"host-nodes\":[0,3],\"policy\":\"bind\",\"prealloc\":true}}{own}"
            ),
        );
        check(
            &Memory::Anywhere,
            "qemu -object ram,{numa}",
            &format!("qemu -object ram,policy=default{own}"),
        );
        check(
            &Memory::Anywhere,
            "qemu -qmp unix:/own,server=on",
            "qemu -qmp unix:/own,server=on -incoming defer",
        );
    }

    #[test]
    fn a_running_qemu_is_a_template() {
        let check = |line: &str, expected: &str, n_notes: usize| {
            let (template, notes) = Template::from_command_line(&words(line)).unwrap();
            assert_eq!(template.words().join(" "), expected);
            assert_eq!(notes.len(), n_notes, "{notes:?}");
            assert!(template.places_memory() || 0 < n_notes);
        };
        check(
            "qemu -name a -m 256M -S -incoming defer -smp 2",
            "qemu -name a -m 256M -smp 2 -object memory-backend-ram,id=pc.ram,size=256M,{numa} \
             -machine memory-backend=pc.ram",
            0,
        );
        check(
            "qemu -machine q35,accel=kvm -m size=2G,slots=2",
            "qemu -machine q35,accel=kvm,memory-backend=pc.ram -m size=2G,slots=2 \
             -object memory-backend-ram,id=pc.ram,size=2G,{numa}",
            0,
        );
        check(
            "qemu -m 64 -object memory-backend-memfd,id=m,host-nodes=1,policy=bind,size=64M,prealloc=on",
            "qemu -m 64 -object memory-backend-memfd,id=m,size=64M,{numa}",
            0,
        );
        check(
            "qemu -object {\"qom-type\":\"memory-backend-ram\"}",
            "qemu -object {\"qom-type\":\"memory-backend-ram\"}",
            1,
        );
        let tap = "qemu -netdev tap,fd=25 -object memory-backend-ram,id=pc.ram,size=1G";
        check(tap, &format!("{tap},{{numa}}"), 1);
        assert_eq!(memory_size("512"), "512M");
    }

    #[test]
    fn what_the_daemon_says_must_not_be_there() {
        let check = |line: &str| Template::new(words(line)).unwrap_err();
        assert!(check("qemu -S").contains("-S"));
        assert!(check("qemu --incoming tcp:0:4444").contains("--incoming"));
        assert!(check("").contains("no program"));
    }
}
