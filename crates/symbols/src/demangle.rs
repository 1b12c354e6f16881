//! Names as their programmers wrote them, within bounds whatever the mangled name is.
//!
//! C++ names can take exponential time to decode: limits on length and depth don't prevent it, so a
//! thread does it and is waited for only so long. A name that takes longer stays mangled, and so do
//! all later C++ names of that source: a hostile guest costs one time limit and one thread.

use std::fmt::{self, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};

/// Longest name that is shown, in characters.
const MAX_CHARS: usize = 512;

/// Longer mangled names stay as they are.
const MAX_MANGLED_BYTES: usize = 4 << 10;

/// How long a name may take; generous, for machines that are emulated.
const MAX_TIME: Duration = Duration::from_secs(3);

/// Recursion depths that the thread's stack has room for, in builds without optimisation too.
const MAX_DEPTH: u32 = 160;
const STACK_BYTES: usize = 32 << 20;

/// Puts names into readable form; one for each source.
#[derive(Debug, Default)]
pub struct Demangler {
    cpp: Cpp,
}

#[derive(Debug, Default)]
enum Cpp {
    #[default]
    NotStarted,
    Running(Worker),
    GivenUp,
}

#[derive(Debug)]
struct Worker {
    names: Sender<String>,
    answers: Receiver<Option<String>>,
}

impl Demangler {
    /// With its thread, which is running when this returns.
    #[must_use]
    pub(crate) fn started() -> Self {
        let mut demangler = Self::default();
        demangler.demangle("_Z1fv");
        demangler
    }

    /// The readable form of `name`: demangled if it is mangled, cut if it is long, without characters
    /// that a terminal would obey.
    pub fn demangle(&mut self, name: &str) -> String {
        if !is_mangled(name) {
            return printable(name);
        }
        if let Ok(rust) = rustc_demangle::try_demangle(name) {
            return printable(&bounded(&format_args!("{rust:#}")));
        }
        if !is_cpp(name) {
            return printable(name);
        }
        self.cpp_within(name, MAX_TIME).map_or_else(|| printable(name), |text| printable(&text))
    }

    /// Whether a name took so long that C++ names stay mangled from then on.
    #[must_use]
    pub fn gave_up(&self) -> bool {
        matches!(self.cpp, Cpp::GivenUp)
    }

    fn cpp_within(&mut self, name: &str, limit: Duration) -> Option<String> {
        if matches!(self.cpp, Cpp::NotStarted) {
            self.cpp = Worker::start().map_or(Cpp::GivenUp, Cpp::Running);
        }
        let Cpp::Running(worker) = &self.cpp else { return None };
        let sent = worker.names.send(name.to_owned()).is_ok();
        match worker.answers.recv_timeout(limit) {
            Ok(answer) if sent => answer,
            // The thread ends after the name it is at, since its receiver is gone.
            _ => {
                self.cpp = Cpp::GivenUp;
                None
            }
        }
    }
}

impl Worker {
    fn start() -> Option<Self> {
        let (names, names_in) = channel::<String>();
        let (answers_out, answers) = channel();
        std::thread::Builder::new()
            .name("demangle".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                names_in
                    .iter()
                    .take_while(|name| answers_out.send(demangle_cpp(name)).is_ok())
                    .for_each(drop);
            })
            .ok()?;
        Some(Self { names, answers })
    }
}

/// Whether there is something to demangle: other names need no care but to be printable.
pub(crate) fn is_mangled(name: &str) -> bool {
    name.len() <= MAX_MANGLED_BYTES && (is_cpp(name) || name.starts_with("_R"))
}

fn is_cpp(name: &str) -> bool {
    name.starts_with("_Z") || name.starts_with("__Z") || name.starts_with("_GLOBAL_")
}

fn demangle_cpp(name: &str) -> Option<String> {
    let parse = ParseOptions::default().recursion_limit(MAX_DEPTH);
    let symbol = Symbol::new_with_options(name.as_bytes(), &parse).ok()?;
    let mut text = Bounded::default();
    let result =
        symbol.structured_demangle(&mut text, &DemangleOptions::new().recursion_limit(MAX_DEPTH));
    (result.is_ok() || text.full()).then_some(text.0)
}

/// A name that is safe to print: shortened, with control and invisible characters replaced.
pub(crate) fn printable(name: &str) -> String {
    let cut = MAX_CHARS < name.chars().take(MAX_CHARS + 1).count();
    let clean = |c: char| if model::is_unsafe(c) { '\u{fffd}' } else { c };
    let mut text: String = name.chars().take(MAX_CHARS - usize::from(cut)).map(clean).collect();
    if cut {
        text.push('…');
    }
    text
}

fn bounded(text: &fmt::Arguments<'_>) -> String {
    let mut bounded = Bounded::default();
    // An error means it is full; what it holds then is what we want.
    let _ = bounded.write_fmt(*text);
    bounded.0
}

/// Takes a little more than a shown name's characters, then refuses, which ends the demangling.
#[derive(Default)]
struct Bounded(String);

impl Bounded {
    fn full(&self) -> bool {
        4 * MAX_CHARS < self.0.len()
    }
}

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.full() {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use std::time::Instant;

    fn check(mangled: &str, expected: &str) {
        assert_eq!(Demangler::default().demangle(mangled), expected, "{mangled}");
    }

    #[test]
    fn names() {
        check("main", "main");
        check("_ZN4calc7computeEi", "calc::compute(int)");
        check(
            "_ZNSt6vectorIiSaIiEE9push_backEOi",
            "std::vector<int, std::allocator<int> >::push_back(int&&)",
        );
        check("_ZN4core3ptr13drop_in_place17h0123456789abcdefE", "core::ptr::drop_in_place");
        check("_RNvCs1234_7mycrate3foo", "mycrate::foo");
        check("_RNvMs0_NtCs1234_7mycrate3modNtB5_3Bar3baz", "<mycrate::mod::Bar>::baz");
        check("_Znot_a_name", "_Znot_a_name");
        check("svm_vcpu_run.isra.0", "svm_vcpu_run.isra.0");
        check("evil\u{1b}[2J\n\u{202e}", "evil\u{fffd}[2J\u{fffd}\u{fffd}");
        check("", "");
    }

    #[test]
    fn long_names_are_cut() {
        let plain = "x".repeat(10_000);
        let cpp = format!("_Z{}{}v", 3000, "y".repeat(3000));
        let rust = format!("_RNvC{}{}1f", 3000, "z".repeat(3000));
        for name in [plain, cpp, rust] {
            let n = Demangler::default().demangle(&name).chars().count();
            assert_eq!(n, MAX_CHARS, "{name}");
        }
    }

    /// `f(A<int, int>, A<A<..>, A<..>>, ...)`: each parameter is twice as long as the one before.
    fn growing_name() -> String {
        let id = |n: u32| char::from_digit(n, 36).unwrap().to_ascii_uppercase();
        let doubling = (0..30).map(|n| format!("S_IS{0}_S{0}_E", id(n))).collect::<String>();
        format!("_Z1f1AIiiE{doubling}")
    }

    #[test]
    fn names_that_grow_without_end_are_cut() {
        let text = Demangler::default().demangle(&growing_name());
        assert!(text.starts_with("f(A<int, int>, A<A<int, int>, A<int, int> >, "), "{text}");
        assert_eq!(text.chars().count(), MAX_CHARS);
    }

    #[test]
    fn a_name_that_takes_too_long_stays_and_so_do_later_ones() {
        let mut demangler = Demangler::default();
        assert_eq!(demangler.cpp_within(&growing_name(), Duration::ZERO), None);
        assert!(demangler.gave_up());
        assert_eq!(demangler.demangle("_Z1gv"), "_Z1gv");
        assert_eq!(demangler.demangle("_RNvCs1234_7mycrate3foo"), "mycrate::foo");
    }

    /// A linear congruential generator: the same names in every run.
    struct Random(u64);

    impl Random {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(self.0 >> 33).unwrap() % n
        }
    }

    #[test]
    fn mutated_names_neither_panic_nor_hang() {
        let seeds = [
            "_ZNSt8__detail15_Hash_code_baseIPKN8JsonUtil32JsonSchemaNodeINS1_14JsonParseStateEEENS_9_IdentityESt4hashIS3_ENS_18_Mod_range_hashingELb0EE15_M_bucket_indexEPKNS_10_Hash_nodeIS3_Lb0EEEm",
            "_ZZN1a1bIJDpT_EE1cIXsZT_EEEDTcl1fspfp_EES2_ENKUlT_E_clIS2_EEDaS2_",
            "_Z3fooILi2EEvRAplT_Li1E_iDTplfp_fp0_E",
            "_RINvNtC3std3mem8align_ofNtNtC4core3fmt8DebugPtrEC1a",
            "_RNCINkXs25_NgCsbmNqQUJIY6D_4core5sliceINyB9_4IterhENuNgNoBb_4iter8iterator8Iterator9rpositionNCNgNpB9_6memchr7memrchrs_0E0Bb_",
            "_ZN4core3fmt9Formatter3pad17h0123456789abcdefE",
            "_Zw4Lf9Knwnw4_f9_4_f9q1R4Lf9Knwnw4_f9_4_f9_1RT_4__9Knwnw4_f9_4_f9q1RT_4_ZLf9K",
            "_ZUlzjjlZZL1zStUlSt7j_Z3kjIIjIjL1vfIIEEEjzjjfjzSt7j_Z3kjIIjfjzL4t3kjIIjfjtUlSt7j_",
        ];
        let alphabet: Vec<char> = seeds.concat().chars().chain("é\u{0}☃".chars()).collect();
        let mut random = Random(42);
        let mut demangler = Demangler::default();
        let begin = Instant::now();
        for round in 0..20_000 {
            let mut name: Vec<char> = seeds[round % seeds.len()].chars().collect();
            for _ in 0..=random.below(6) {
                let at = random.below(name.len() - 2) + 2;
                match random.below(4) {
                    0 => name[at] = alphabet[random.below(alphabet.len())],
                    1 => drop(name.remove(at)),
                    2 => name.truncate(at.max(8)),
                    _ => {
                        let copied = name[2..at].to_vec();
                        name.splice(at..at, copied);
                    }
                }
                name.resize(name.len().max(8), 'v');
            }
            let name: String = name.into_iter().collect();
            assert!(demangler.demangle(&name).chars().count() <= MAX_CHARS, "{name}");
            if demangler.gave_up() {
                eprintln!("took too long: {name}");
                demangler = Demangler::default();
            }
        }
        assert!(begin.elapsed() < Duration::from_secs(120), "{:?}", begin.elapsed());
    }
}
