use super::*;

const HEADER: &str = "H+0.1.0+$AUTHENTIC$A$M$D+$Q$E$M$U-$C$P$U+F+2Z+1+$T$C$G+GJDGXS+1+PIT+C+255S+2+1++PVH+UNKNOWN+SHORT++5*";
/// flat.cpl0, in force; long.cpl3.nocache, not in force.
const CONDITIONS: [&str; 2] = ["C+0+1++H+0+0+2E4.+15*", "C+1B+0+NO-CACHE%21+H+0+3+3+15*"];

/// Letter and name of a result, and its fields.
fn result(letter: char, name: &str, fields: &str) -> String {
    format!("{letter}{}{fields}*", in_base36(catalogue::hash(name)))
}

fn in_base36(mut number: u32) -> String {
    let mut digits = ['0'; 5];
    for digit in digits.iter_mut().rev() {
        *digit = char::from_digit(number % 36, 36).unwrap().to_ascii_uppercase();
        number /= 36;
    }
    digits.iter().collect()
}

fn payload() -> String {
    let mut text = HEADER.to_owned() + CONDITIONS[0];
    text += &result('O', "add", "+5K+1+1+1+1+2S+M8.+A.");
    text += &result('F', "cpuid", "+6");
    text += &result('M', "nvme-read-irq", "+NO-$N$V$ME-CONTROLLER");
    text += CONDITIONS[1];
    text += &result('J', "add", "++2S+1+0+0+");
    text += &result('T', "mwait", "+RS");
    text += "E+5+-3+0*";
    let sum = crc32fast::hash(text.as_bytes());
    text + &format!("X+{sum:08X}")
}

fn codes(payload: &str, of: usize) -> Vec<String> {
    let pieces: Vec<&str> = (0..payload.len().div_ceil(of))
        .map(|n| &payload[n * of..payload.len().min((n + 1) * of)])
        .collect();
    let code = |(n, piece): (usize, &&str)| {
        let framed = format!("VMB1:{}/{}:{piece}", n + 1, pieces.len());
        format!("{framed}:{:08X}", crc32fast::hash(framed.as_bytes()))
    };
    pieces.iter().enumerate().map(code).collect()
}

fn shown(text: &str) -> Vec<String> {
    let results = match parse(text.as_bytes()) {
        Ok(results) => results,
        Err(error) => return vec![format!("error: {error}")],
    };
    let mut lines: Vec<String> = results
        .measurements
        .iter()
        .map(|m| match &m.outcome {
            Outcome::Measured(figures) => format!(
                "{} {} {:.2} {:.2}{}",
                m.operation,
                m.condition,
                figures.ticks().unwrap(),
                figures.range().unwrap().1,
                figures.ineffective.as_ref().map(|why| format!(" {why}")).unwrap_or_default()
            ),
            other => format!("{} {} {}", m.operation, m.condition, other.why()),
        })
        .collect();
    lines.extend(results.notes.all());
    lines
}

const ALL: [&str; 5] = [
    "add flat.cpl0 0.80 0.82",
    "cpuid flat.cpl0 fault #UD",
    "nvme-read-irq flat.cpl0 missing: no NVMe controller",
    "add long.cpl3.nocache 1.00 1.00 no cache!",
    "mwait long.cpl3.nocache timeout after 1000 ms",
];

#[test]
fn codes_in_any_order_and_twice() {
    let mut codes = codes(&payload(), 60);
    assert!(3 < codes.len());
    codes.reverse();
    let twice = codes[1].clone();
    codes.push(format!("QR-Code:{twice} "));
    let text = codes.join("\r\n");
    assert!(is_in(text.as_bytes()));
    assert_eq!(shown(&text), ALL);
    let machine = parse(text.as_bytes()).unwrap().machine;
    assert_eq!((machine.brand.as_str(), machine.tsc.hz), ("QEMU CPU", Some(1e9)));
    assert_eq!((machine.vendor.as_str(), machine.tsc.drift_ppm), ("AuthenticAMD", Some(-3)));
    assert_eq!((machine.memory_bytes, machine.planned), (Some(100_000), Some(5)));
    assert_eq!((machine.watchdog, machine.plan.as_str()), (None, "short"));
}

#[test]
fn missing_codes_are_named() {
    let all = codes(&payload(), 60);
    let without = |missing: usize| {
        let rest =
            all.iter().enumerate().filter(|(n, _)| *n != missing).map(|(_, code)| code.as_str());
        shown(&rest.collect::<Vec<_>>().join("\n"))
    };
    let n = all.len();
    let lines = without(0);
    assert!(
        lines.contains(&format!("1 of {n} codes is missing: 1; what is in it is lost")),
        "{lines:?}"
    );
    assert!(lines.iter().any(|line| line.starts_with("the header is lost")), "{lines:?}");
    let lines = without(n - 1);
    assert!(lines.iter().any(|line| line.starts_with("the end is missing")), "{lines:?}");
    for missing in 0..n {
        let lines = without(missing);
        let figures = lines.iter().filter(|line| line.contains("cpl"));
        assert!(figures.clone().all(|line| ALL.contains(&line.as_str())), "{lines:?}");
    }
}

#[test]
fn errors() {
    let check = |text: &str, expected: &str| {
        assert_eq!(shown(text), [format!("error: {expected}")], "{text}");
    };
    let mut all = codes(&payload(), 60);
    check("nothing", "no text of a benchmark QR code in this file");
    check(&all[0].replace('A', "B"), "every code has a wrong checksum: photograph them again");
    let several = "codes of several runs: read each run by itself";
    let other = codes(&payload().replace("0.1.0", "0.1.1"), 60);
    check(&format!("{}\n{}", all[0], other[0]), several);
    all[0] = other[0].clone();
    check(&all.join("\n"), several);
    check(&codes(&payload(), 99)[0], "these codes hold no result: photograph the others, too");
}

/// Whatever a reader of codes makes of a photograph: nothing is read that is not there.
#[test]
fn any_damage_is_survived() {
    let text = codes(&payload(), 40).join("\n");
    for at in 0..text.len() {
        let mut damaged = text.clone().into_bytes();
        damaged[at] = if damaged[at] == b'7' { b'8' } else { b'7' };
        let Ok(results) = parse(&damaged) else { continue };
        let lines = shown(&String::from_utf8(damaged).unwrap());
        assert!(
            lines.iter().take(results.measurements.len()).all(|line| ALL.contains(&line.as_str()))
        );
    }
    for record in
        ["O", "O00000", "C+", "H", "E+1", "I00000+1+1", "O00000+ZZZZZZZZZZZZZZZZ", "C+99999999+1"]
    {
        assert!(record::parse(record).is_none(), "{record}");
    }
}

/// Codes of one line, with nothing between them.
#[test]
fn a_code_ends_where_the_next_begins() {
    assert_eq!(shown(&codes(&payload(), 60).concat()), ALL);
    let marks = MARK.repeat(1 << 20) + ":00000000";
    assert_eq!(shown(&marks), ["error: every code has a wrong checksum: photograph them again"]);
}

#[test]
fn results_have_a_limit_as_in_lines() {
    let results = (0..1 << 16).map(|hash| format!("T{}+1*", in_base36(hash)));
    let text = HEADER.to_owned() + CONDITIONS[0] + &results.collect::<String>() + "E+0+0+0*";
    let sum = crc32fast::hash(text.as_bytes());
    let code = codes(&(text + &format!("X+{sum:08X}")), 1 << 20);
    let results = parse(code[0].as_bytes()).unwrap();
    assert_eq!(results.measurements.len(), 1 << 15);
    let notes = results.notes.all();
    assert!(notes.contains(&"32768 results too many, left out".to_owned()), "{notes:?}");
}

#[test]
fn check_sums_are_digits() {
    let check = |text: &str, expected: Option<u32>| assert_eq!(hex(text), expected, "{text}");
    check("00C0FFee", Some(0xc0_ffee));
    for odd in ["+1234567", "-1234567", " 1234567", "123456789", "0x123456", ""] {
        check(odd, None);
    }
}
