//! Functions that a program made while it ran, from the `/tmp/perf-PID.map` that it wrote: lines of start and size
//! (hexadecimal), and a name.

use std::io::{BufRead, BufReader, Read};

use crate::{Function, FunctionTable};

/// Longer files are read up to here.
const MAX_BYTES: u64 = 256 << 20;

/// Longer lines are cut.
const MAX_LINE_BYTES: u64 = 4096;

/// Most steps that note which line an address is in: lines may all cover everything.
const MAX_STEPS: usize = 1 << 24;

/// Most bytes of names.
const MAX_NAME_BYTES: usize = 16 << 20;

/// The functions that hold `addresses`, which ascend. Of several lines for one address the last one counts: code is moved
/// and made anew.
pub(crate) fn read(file: impl Read, addresses: &[u64], budget: &mut u64) -> FunctionTable {
    let limit = MAX_BYTES.min(*budget);
    let mut file = BufReader::new(file.take(limit));
    let mut last: Vec<Option<(u64, u64, Box<str>)>> = vec![None; addresses.len()];
    let (mut steps, mut name_bytes) = (0_usize, 0_usize);
    let mut line = Vec::new();
    while read_line(&mut file, &mut line) && steps < MAX_STEPS && name_bytes < MAX_NAME_BYTES {
        let line = String::from_utf8_lossy(&line);
        let Some((start, size, name)) = parse(&line) else { continue };
        let end = start.saturating_add(size);
        let first = addresses.partition_point(|address| *address < start);
        let covered = addresses.iter().zip(&mut last).skip(first);
        for (_, last) in covered.take_while(|(address, _)| **address < end) {
            *last = Some((start, size, name.into()));
            name_bytes = name_bytes.saturating_add(name.len());
            steps = steps.saturating_add(1);
        }
    }
    *budget = budget.saturating_sub(limit.saturating_sub(file.into_inner().limit()));
    // Each with the piece of code that is known to be its own.
    FunctionTable::new(addresses.iter().zip(last).filter_map(|(address, last)| {
        let (_, _, name) = last?;
        Some(Function { offset: *address, size: 1, name: name.into() })
    }))
}

/// One line, without its end; whether there was one.
fn read_line(file: &mut impl BufRead, line: &mut Vec<u8>) -> bool {
    line.clear();
    if file.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', line).is_err() || line.is_empty() {
        return false;
    }
    if line.last() != Some(&b'\n') {
        return file.skip_until(b'\n').is_ok();
    }
    line.pop();
    true
}

fn parse(line: &str) -> Option<(u64, u64, &str)> {
    let (start, rest) = line.trim_start().split_once(' ')?;
    let (size, name) = rest.trim_start().split_once(' ')?;
    let hex = |text: &str| {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        // The standard library takes a sign, too.
        let are_digits = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        u64::from_str_radix(digits, 16).ok().filter(|_| are_digits)
    };
    let name = name.trim();
    (!name.is_empty()).then_some((hex(start)?, hex(size)?, name))
}

#[cfg(test)]
mod test {
    use super::*;

    fn check(text: &str, addresses: &[u64], expected: &[&str]) {
        let table = read(text.as_bytes(), addresses, &mut u64::MAX.clone());
        let name = |address: &u64| table.find(*address).map_or("-", |function| &function.name);
        let names: Vec<&str> = addresses.iter().map(name).collect();
        assert_eq!(names, expected, "{text}");
    }

    #[test]
    fn the_last_line_counts() {
        let text = "1000 10 LazyCompile:~sum a.js:1\n0x1010 0x10 two words\n\
                    1000 10 LazyCompile:*sum a.js:1\nnonsense\n2000 zz x\n3000 10\n4000 8 \n";
        check(
            text,
            &[0xfff, 0x1000, 0x100f, 0x1010, 0x1020, 0x2000, 0x3000, 0x4000],
            &[
                "-",
                "LazyCompile:*sum a.js:1",
                "LazyCompile:*sum a.js:1",
                "two words",
                "-",
                "-",
                "-",
                "-",
            ],
        );
        check("", &[1], &["-"]);
        for odd in
            ["+1000 10 a", "1000 +10 a", "0x0x1000 10 a", "0x+1000 10 a", "-1000 10 a", "0x 10 a"]
        {
            check(&format!("{odd}\n"), &[0, 0x1000], &["-", "-"]);
        }
        check("0 ffffffffffffffff all", &[0, 1, u64::MAX], &["all", "all", "-"]);
    }

    #[test]
    fn hostile_maps_are_bounded() {
        let long = format!("0 10 {}\n20 10 next\n", "x".repeat(100_000));
        let table = read(long.as_bytes(), &[1, 0x21], &mut u64::MAX.clone());
        assert!(table.find(1).unwrap().name.len() < 5000);
        assert_eq!(table.find(0x21).unwrap().name, "next");
        let addresses: Vec<u64> = (0..100_000).collect();
        let all = "0 ffffffff f\n".repeat(1000);
        assert!(read(all.as_bytes(), &addresses, &mut u64::MAX.clone()).find(5).is_some());
        let mut budget = 1000;
        read(all.as_bytes(), &addresses, &mut budget);
        assert_eq!(budget, 0);
    }
}
