//! Changing files for the worse.

use std::fs;
use std::path::{Path, PathBuf};

use super::synthetic::Random;

/// What the tests of damage need to know of recordings, and of traces.
pub(crate) struct Subject {
    pub(crate) manifest: &'static str,
    pub(crate) tables: &'static [&'static str],
    /// Writes a small one to this path.
    pub(crate) write: fn(&Path),
    /// The error of opening and reading all of it.
    pub(crate) failure: fn(&Path) -> Option<String>,
}

impl Subject {
    /// Writes a small one, changes it, and compares the error (`{}`: its path).
    pub(crate) fn check(&self, change: impl Fn(&Path), expected: &str) {
        let dir = tempfile::tempdir().unwrap();
        let path = self.written(dir.path());
        change(&path);
        let expected = expected.replace("{}", &path.display().to_string());
        assert_eq!((self.failure)(&path).as_deref(), Some(expected.as_str()));
    }

    pub(crate) fn written(&self, dir: &Path) -> PathBuf {
        let path = dir.join("day1");
        (self.write)(&path);
        path
    }

    pub(crate) fn every_changed_byte_is_an_error(&self, seed: u64) {
        let dir = tempfile::tempdir().unwrap();
        let path = self.written(dir.path());
        let mut random = Random(seed);
        for table in self.tables {
            let file = path.join(table);
            let whole = fs::read(&file).unwrap();
            for _ in 0..20 {
                fs::write(&file, mutated(&mut random, &whole)).unwrap();
                let error = (self.failure)(&path).unwrap();
                assert!(error.contains("another size or checksum"), "{error}");
            }
            fs::write(&file, &whole).unwrap();
        }
        assert_eq!((self.failure)(&path), None);
    }

    /// Changes bytes of tables and puts the right checksum: most changes must be errors, none a panic or an endless run.
    pub(crate) fn hostile_tables_do_no_harm(&self, seed: u64, min_errors: usize) {
        let dir = tempfile::tempdir().unwrap();
        let path = self.written(dir.path());
        let json = path.join(self.manifest);
        let honest = fs::read_to_string(&json).unwrap();
        let mut random = Random(seed);
        let mut errors = 0;
        for table in self.tables {
            let file = path.join(table);
            let whole = fs::read(&file).unwrap();
            for _ in 0..150 {
                let bytes = mutated(&mut random, &whole);
                fs::write(&file, &bytes).unwrap();
                fs::write(&json, with_checksum(&honest, table, &whole, &bytes)).unwrap();
                errors += usize::from((self.failure)(&path).is_some());
            }
            fs::write(&file, &whole).unwrap();
        }
        fs::write(&json, &honest).unwrap();
        assert_eq!((self.failure)(&path), None);
        let changes = self.tables.len() * 150;
        assert!(
            min_errors < errors,
            "only {errors} of {changes} changes were errors: does the checksum still fit?"
        );
    }

    /// Changes bytes of what a killed writer left in `partial`, which opens as `path`.
    pub(crate) fn hostile_spools_do_no_harm(
        &self,
        path: &Path,
        partial: &Path,
        files: &[&str],
        seed: u64,
    ) {
        let mut random = Random(seed);
        for name in files {
            let file = partial.join(name);
            let whole = fs::read(&file).unwrap();
            for _ in 0..500 {
                fs::write(&file, mutated(&mut random, &whole)).unwrap();
                let _ = (self.failure)(path);
            }
            fs::write(&file, &whole).unwrap();
        }
        assert_eq!((self.failure)(path), None);
    }

    /// Puts a table of another folder, whose rows refer to rows that are not in this one, with the right checksum.
    pub(crate) fn check_references(&self, path: &Path, foreign: &Path, table: &str, row: &str) {
        let json = path.join(self.manifest);
        let [old, new] = [path, foreign].map(|path| fs::read(path.join(table)).unwrap());
        let honest = fs::read_to_string(&json).unwrap();
        fs::write(&json, with_checksum(&honest, table, &old, &new)).unwrap();
        fs::write(path.join(table), new).unwrap();
        let expected = format!(
            "{}/{table} is damaged ({row} refers to a row that does not exist): copy it again from where it was \
             made",
            path.display()
        );
        assert_eq!((self.failure)(path), Some(expected));
    }
}

/// Puts other text where it stands first.
pub(crate) fn edit(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(path, text.replacen(from, to, 1)).unwrap();
}

/// A few bytes changed, or the end cut off, or a piece repeated.
pub(crate) fn mutated(random: &mut Random, whole: &[u8]) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    let at = |random: &mut Random| usize::try_from(random.below(whole.len() as u64)).unwrap();
    match random.below(8) {
        0 => bytes.truncate(at(random)),
        1 => {
            let from = at(random);
            bytes.splice(from..from, whole[from..].iter().copied().take(9));
        }
        _ => {
            for _ in 0..=random.below(3) {
                let place = at(random);
                bytes[place] ^= random.next().to_le_bytes()[0] | 1;
            }
        }
    }
    bytes
}

/// The manifest with the new bytes' size and checksum in place of the old ones'.
pub(crate) fn with_checksum(json: &str, table: &str, old: &[u8], new: &[u8]) -> String {
    let entry = |bytes: &[u8]| {
        let crc32 = crc32fast::hash(bytes);
        format!("\"bytes\": {},\n      \"crc32\": \"{crc32:08x}\"", bytes.len())
    };
    assert!(json.contains(table) && json.contains(&entry(old)), "{json}");
    json.replacen(&entry(old), &entry(new), 1)
}
