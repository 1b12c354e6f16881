//! Drawn answers, and the map that they make. An image is `ID PID CR3 START..END [module...]`, times `-` where open.

use api::guest::{FunctionSymbol, GuestKernel, GuestMapping, VERSION};

use super::*;

fn image(line: &str) -> GuestImage {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (start, end) = words[3].split_once("..").unwrap();
    let mapping = |(n, module): (u64, &&str)| GuestMapping {
        start: n << 12,
        end: (n + 1) << 12,
        offset: 0,
        module: module.parse().unwrap(),
    };
    GuestImage {
        id: words[0].parse().unwrap(),
        pid: words[1].parse().unwrap(),
        name: "p".into(),
        cr3: u64::from_str_radix(words[2], 16).unwrap(),
        start_ns: start.parse().ok(),
        end_ns: end.parse().ok(),
        threads: Vec::new(),
        mappings: (1..).zip(&words[4..]).map(mapping).collect(),
    }
}

fn answer(now_ns: u64, images: &[&str], modules: &[&str]) -> GuestMap {
    let module = |path: &&str| GuestModule { path: (*path).into(), build_id: Vec::new() };
    GuestMap {
        version: VERSION,
        boot_id: "boot".into(),
        now_ns,
        images: images.iter().map(|line| image(line)).collect(),
        modules: modules.iter().map(module).collect(),
        ..GuestMap::default()
    }
}

/// The images that are known: `PID CR3 START..END [path...]`.
fn check(known: &CachedMap, expected: &[&str]) {
    let map = known.clone().into_map().0.map;
    let time = |time: Option<u64>| time.map_or("-".into(), |time| time.to_string());
    let path = |m: &GuestMapping| {
        map.modules.get(m.module as usize).map_or(" ?".into(), |module| format!(" {}", module.path))
    };
    let draw = |i: &GuestImage| {
        let paths: String = i.mappings.iter().map(path).collect();
        format!("{} {:x} {}..{}{paths}", i.pid, i.cr3, time(i.start_ns), time(i.end_ns))
    };
    assert_eq!(map.images.iter().map(draw).collect::<Vec<_>>(), expected);
}

#[test]
fn answers_add_up() {
    let mut known = CachedMap::default();
    known.add(answer(10, &["0 1 a000 -..- 0", "1 7 b000 -..- 1"], &["/init", "/sh"]));
    known.add(answer(20, &["1 7 b000 -..15 1", "2 7 c000 15..- 2 9"], &["/ls"]));
    check(&known, &["1 a000 -..- /init", "7 b000 -..15 /sh", "7 c000 15..- /ls ?"]);
    assert_eq!(known.reported_ns(), 20);
}

#[test]
fn the_kernel_stays_until_it_is_reported_again() {
    let mut known = CachedMap::default();
    let kernel = |cr3| Some(GuestKernel { cr3, ..GuestKernel::default() });
    known.add(GuestMap { kernel: kernel(1), ..answer(10, &[], &[]) });
    known.add(answer(20, &[], &[]));
    assert_eq!(known.clone().into_map().0.map.kernel, kernel(1));
    known.add(GuestMap { kernel: kernel(2), ..answer(30, &[], &[]) });
    assert_eq!(known.into_map().0.map.kernel, kernel(2));
}

#[test]
fn a_new_session_goes_on_where_the_last_one_stopped() {
    let mut known = CachedMap::default();
    let first = ["0 1 a000 -..- 0", "1 7 b000 12..- 1", "2 8 c000 -..- 1"];
    known.add(answer(20, &first, &["/init", "/sh"]));
    // Of the same page tables: init, the process from 12 on, and a new one that took those of 8.
    let again = ["0 7 b000 -..- 0", "1 1 a000 -..- 1", "2 9 c000 -..- 2"];
    known.add_new_session(answer(50, &again, &["/sh", "/init", "/new"]));
    known.add(answer(60, &["0 7 b000 12..55 0"], &[]));
    check(
        &known,
        &["1 a000 -..- /init", "7 b000 12..55 /sh", "8 c000 -..20 /sh", "9 c000 20..- /new"],
    );
    let numbers: Vec<(u32, u32)> = known.numbers_in_session().into_iter().collect();
    assert_eq!(numbers, [(0, 1), (1, 0), (2, 2)]);
}

#[test]
fn modules_of_one_path_in_a_session_are_different_ones() {
    let mut known = CachedMap::default();
    known.add(answer(10, &["0 1 a000 -..- 0"], &["/app.py"]));
    known.add(answer(20, &["0 1 a000 -..- 0 1"], &["/app.py"]));
    let symbols = |module, name: &str| ModuleSymbols {
        module,
        symbols: vec![FunctionSymbol { offset: 1, size: 1, name: name.into() }],
        ..ModuleSymbols::default()
    };
    known.keep(symbols(0, "first"));
    known.keep(symbols(1, "later"));
    let (_, kept) = known.into_map();
    let names: Vec<&str> = kept.values().map(|it| it.symbols[0].name.as_str()).collect();
    assert_eq!(names, ["first", "later"]);
}

#[test]
fn files_are_requested_once_programs_first() {
    let mut known = CachedMap::default();
    let files = ["/libc", "/init", "[vdso]", "/sh", "/kept"];
    known.add(answer(10, &["0 1 a000 -..- 1 0 2", "1 7 b000 -..- 3 0 4"], &files));
    let mut next = || known.next_module(|module| module.path == "/kept");
    assert_eq!([next(), next(), next(), next()], [Some(1), Some(3), Some(0), None]);
}

#[test]
fn symbols_are_kept_by_the_maps_numbers_and_not_without_bounds() {
    let mut known = CachedMap::default();
    known.add(answer(10, &["0 1 a000 -..- 0"], &["/init"]));
    known.add_new_session(answer(20, &["0 1 a000 -..- 1"], &["/new", "/init"]));
    let function = FunctionSymbol { offset: 1, size: 1, name: "f".into() };
    let symbols = |module, n| ModuleSymbols {
        module,
        symbols: vec![function.clone(); n],
        ..ModuleSymbols::default()
    };
    known.keep(symbols(1, 3));
    known.keep(symbols(0, MAX_KEPT_FUNCTIONS));
    known.keep(symbols(7, 1));
    let kept: Vec<(u32, usize)> =
        known.into_map().1.into_iter().map(|(module, s)| (module, s.symbols.len())).collect();
    assert_eq!(kept, [(0, 3)]);
}

#[test]
fn a_guest_that_tells_too_much_is_cut_off() {
    let mut known = CachedMap::default();
    let lines: Vec<String> = (0..MAX_IMAGES + 5).map(|n| format!("{n} 1 a000 -..-")).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    known.add(answer(10, &lines, &[]));
    let map = known.into_map().0.map;
    assert_eq!(map.images.len(), MAX_IMAGES);
    assert_eq!(map.problems, ["5 processes found no room in its map"]);
}

#[test]
fn guests_have_room_each_and_together_and_repeated_reports_take_none() {
    let size = image_bytes(&image("0 1 a000 -..-"));
    let whole = Budget::new(3 * size);
    let tell = |times| {
        let mut known = CachedMap::within(whole.part(2 * size));
        let images = ["0 1 a000 -..-", "1 2 b000 -..-", "2 3 c000 -..-"];
        (0..times).for_each(|now_ns| known.add(answer(now_ns, &images, &[])));
        (known.clone().into_map().0.map.images.len(), known)
    };
    let ((first, known), (second, _known), (third, _)) = (tell(10), tell(1), tell(1));
    assert_eq!([first, second, third], [2, 1, 0]);
    drop(known);
    assert_eq!(tell(1).0, 2, "what it took is there again");
}

#[test]
fn a_kernel_that_takes_too_much_has_no_names() {
    let symbol = |n| KernelSymbol { address: u64::MAX - n, name: "f".into() };
    let kernel =
        |n| GuestKernel { symbols: (0..n).map(symbol).collect(), ..GuestKernel::default() };
    let mut known = CachedMap::within(Budget::new(kernel_bytes(&kernel(10))));
    let mut tell = |n| {
        known.add(GuestMap { kernel: Some(kernel(n)), ..answer(1, &[], &[]) });
        let reported = known.clone().into_map().0;
        (reported.functions.len(), reported.map.problems)
    };
    assert_eq!(tell(9), (9, Vec::new()));
    assert_eq!(tell(10), (10, Vec::new()));
    let problem = "its kernel's symbols found no room in its map".to_owned();
    assert_eq!(tell(11), (10, vec![problem]));
}

#[test]
fn a_window_has_what_counts_for_it() {
    let room = Budget::new(10_000);
    let mut known = CachedMap::within(room.clone());
    let first = ["0 1 a000 -..- 0", "1 7 b000 -..15 1", "2 8 d000 -..40 1"];
    known.add(answer(10, &first, &["/init", "/sh"]));
    known.add(GuestMap { problems: vec!["a problem".into()], ..answer(45, &[], &[]) });
    let left = room.left();
    let window = known.for_window(20);
    check(&window, &["1 a000 -..- /init", "8 d000 -..40 /sh"]);
    assert_eq!(window.clone().into_map().0.map.problems, ["a problem"]);
    assert_eq!(window.numbers_in_session(), BTreeMap::from([(0, 0), (1, 1)]));
    assert!(left < room.left(), "there is room again");
    // The later report of images that moved up.
    known.add(answer(50, &["0 1 a000 -..48 0", "3 9 e000 46..- 2"], &["/new"]));
    check(&known.for_window(45), &["1 a000 -..48 /init", "9 e000 46..- /new"]);
    // Files without a mapping are forgotten with their session.
    check(&known.for_window(49), &["9 e000 46..- /new"]);
    known.add_new_session(answer(60, &["0 9 e000 -..- 1"], &["/init", "/new"]));
    check(&known, &["9 e000 46..- /new"]);
    assert_eq!(known.clone().into_map().0.map.modules.len(), 2);
    assert_eq!(known.numbers_in_session(), BTreeMap::from([(0, 1), (1, 0)]));
    drop(known);
    assert_eq!(room.left(), 10_000);
}
