//! Golden files of this crate's tests: UPDATE=1 rewrites them, a person reads the difference.

use std::fs;
use std::path::Path;

pub(crate) fn check(name: &str, actual: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/testbed");
    let path = folder.join(name);
    if std::env::var_os("UPDATE").is_some() {
        fs::create_dir_all(&folder).unwrap();
        fs::write(&path, actual).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        actual,
        expected,
        "{} differs: run again with UPDATE=1 and read the change",
        path.display()
    );
}
