//! Frames of CPython's code, 3.11 to 3.13, which stand in place of those of the loop that runs it.
//!
//! ```text
//!   native:   loop   call_function   loop   main           C code that Python calls, and that calls Python
//!   Python:   f <- g <- h            k <- <module>         each loop runs frames up to one that C code called
//!   stack:    f g h  call_function   k <module>   main
//! ```
//! Since 3.11 a Python function calls another one without a new loop.

use std::iter::repeat_n;

use model::Interpreter;

/// Function that runs the code.
pub const LOOP: &str = "_PyEval_EvalFrameDefault";
/// Variable with all of an interpreter's state.
pub const RUNTIME: &str = "_PyRuntime";
/// Variable with the version, as `PY_VERSION_HEX` has it.
pub const VERSION: &str = "Py_Version";
/// Bytes of `RUNTIME` that `Layout::new` needs.
pub const RUNTIME_BYTES: usize = 8 * DEBUG_WORDS;

/// The last word of a frame that is read.
const LAST_WORD: u64 = 8;
/// `FRAME_MARK_SHIFT` of `bpf/abi/sample.h`, and what is below it.
const MARK_SHIFT: u32 = 56;
const ADDRESS: u64 = (1 << MARK_SHIFT) - 1;
/// `FRAMES_END` and `FRAMES_UNREADABLE`.
const END: u64 = 0;
const UNREADABLE: u64 = 1;
/// Words of `_Py_DebugOffsets` up to the last one that is used.
const DEBUG_WORDS: usize = 44;
const DEBUG_COOKIE: [u8; 8] = *b"xdebugpy";
/// Most characters of a name, and of a path.
const MAX_NAME: u64 = 512;
const MAX_PATH: u64 = 4096;

/// Reads a process' memory.
pub type Memory<'m> = &'m dyn Fn(u64, &mut [u8]) -> Option<()>;

/// Where a version keeps what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    interpreter: Interpreter,
    /// A frame with this mark was called by C code.
    called_by_c: u8,
    /// It is only a mark: its code is not the program's.
    is_shim: bool,
    /// Offsets in a code object: file, qualified name, instructions.
    file: u64,
    name: u64,
    instructions: u64,
    /// Bytes of a string before its text, if it is ASCII and if not.
    ascii_bytes: u64,
    compact_bytes: u64,
}

/// A frame of Python code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Frame {
    /// Address of its code object; 0: none of the program's.
    code: u64,
    is_called_by_c: bool,
}

/// The frames of a thread that BPF copied.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Frames {
    frames: Vec<Frame>,
    /// None is missing.
    is_whole: bool,
}

/// What a code object says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeObject {
    /// As `Class.method`.
    pub name: String,
    pub file: String,
    /// Bytes before its instructions: no other object has an address there.
    pub bytes: u64,
    /// Where its name and file are: another object at its address has others.
    pub identity: [u64; 2],
}

impl Layout {
    /// That of a version, by the first bytes of its `RUNTIME`. `None`: of another one.
    #[must_use]
    pub fn new(version: u64, runtime: &[u8]) -> Option<Self> {
        let interpreter = Interpreter {
            runtime: 48,
            threads: 16,
            next: 8,
            thread: 152,
            frame: 56,
            inner: Some(8),
            code: 4,
            caller: 6,
            mark: 68,
        };
        let old = Self {
            interpreter,
            called_by_c: 1,
            is_shim: false,
            file: 112,
            name: 128,
            instructions: 184,
            ascii_bytes: 48,
            compact_bytes: 72,
        };
        match version >> 16 {
            0x30b => Some(old),
            0x30c => Some(Self {
                interpreter: Interpreter {
                    threads: 72,
                    thread: 136,
                    inner: Some(0),
                    code: 0,
                    caller: 1,
                    mark: 70,
                    ..interpreter
                },
                called_by_c: 3,
                is_shim: true,
                instructions: 192,
                ascii_bytes: 40,
                compact_bytes: 56,
                ..old
            }),
            0x30d => Self::published(runtime),
            _ => None,
        }
    }

    /// By the offsets that the interpreter publishes for debuggers (`_Py_DebugOffsets` of 3.13).
    fn published(runtime: &[u8]) -> Option<Self> {
        let (words, _) = runtime.as_chunks::<8>();
        if words.first() != Some(&DEBUG_COOKIE) {
            return None;
        }
        let word = |n: usize| words.get(n).map(|word| u64::from_le_bytes(*word));
        let offset = |n: usize| u32::try_from(word(n)?).ok();
        let place = |n: usize| {
            let words = word(n)?.checked_div(8).filter(|words| *words < LAST_WORD)?;
            (word(n)? % 8 == 0).then(|| u8::try_from(words).ok())?
        };
        Some(Self {
            interpreter: Interpreter {
                runtime: word(5)?,
                threads: offset(9)?,
                next: offset(21)?,
                frame: offset(23)?,
                thread: offset(24)?,
                inner: None,
                caller: place(29)?,
                code: place(30)?,
                mark: u8::try_from(word(33)?).ok().filter(|at| u64::from(*at) >> 3 == LAST_WORD)?,
            },
            called_by_c: 3,
            is_shim: true,
            file: word(35)?,
            name: word(37)?,
            instructions: word(43)?,
            // Since 3.12.
            ascii_bytes: 40,
            compact_bytes: 56,
        })
    }

    /// What BPF needs, for a process that has `RUNTIME` at this address.
    #[must_use]
    pub fn interpreter(&self, runtime: u64) -> Interpreter {
        Interpreter { runtime: runtime.wrapping_add(self.interpreter.runtime), ..self.interpreter }
    }

    /// The frames in what BPF copied.
    #[must_use]
    pub fn frames(&self, copy: &[u8]) -> Frames {
        let (words, _) = copy.as_chunks::<8>();
        let mut frames = Frames::default();
        for word in words.iter().map(|word| u64::from_le_bytes(*word)) {
            if word == END || word == UNREADABLE {
                frames.is_whole = word == END;
                break;
            }
            let is_called_by_c = word >> MARK_SHIFT == u64::from(self.called_by_c);
            let is_mark = self.is_shim && is_called_by_c;
            let code = if is_mark { 0 } else { word & ADDRESS };
            frames.frames.push(Frame { code, is_called_by_c });
        }
        frames
    }

    /// Reads a code object; `None`: it is not there, or is none.
    #[must_use]
    pub fn code_object(&self, memory: Memory<'_>, address: u64) -> Option<CodeObject> {
        let identity = self.identity(memory, address)?;
        let [file, name] = identity;
        Some(CodeObject {
            name: self.string(memory, name, MAX_NAME)?,
            file: self.string(memory, file, MAX_PATH)?,
            bytes: self.instructions,
            identity,
        })
    }

    /// `CodeObject::identity` of the object that is at an address by now.
    #[must_use]
    pub fn identity(&self, memory: Memory<'_>, address: u64) -> Option<[u64; 2]> {
        let word = |offset: u64| {
            let mut word = [0; 8];
            memory(address.checked_add(offset)?, &mut word)?;
            Some(u64::from_le_bytes(word))
        };
        Some([word(self.file)?, word(self.name)?])
    }

    /// Text of a string object (`PyASCIIObject`, `PyCompactUnicodeObject`).
    fn string(&self, memory: Memory<'_>, address: u64, most: u64) -> Option<String> {
        let mut head = [0; 24];
        // Length, hash, state: a number of bits each for interned, kind, compact, ascii.
        memory(address.checked_add(16)?, &mut head)?;
        let (words, _) = head.as_chunks::<8>();
        let [length, _, state] = words else { return None };
        let length = Some(u64::from_le_bytes(*length)).filter(|length| *length <= most)?;
        let state = u64::from_le_bytes(*state);
        // `interned` has 2 bits in all three versions.
        let (kind, is_compact, is_ascii) =
            (state >> 2 & 7, state >> 5 & 1 == 1, state >> 6 & 1 == 1);
        if !is_compact || !matches!(kind, 1 | 2 | 4) {
            return None;
        }
        let before = if is_ascii { self.ascii_bytes } else { self.compact_bytes };
        let mut bytes = vec![0; usize::try_from(length.checked_mul(kind)?).ok()?];
        memory(address.checked_add(before)?, &mut bytes)?;
        let size = usize::try_from(kind).ok()?;
        let characters = bytes.chunks_exact(size).map(|bytes| {
            let value = bytes.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte));
            char::from_u32(value).unwrap_or(char::REPLACEMENT_CHARACTER)
        });
        Some(characters.collect())
    }
}

impl Frames {
    /// Addresses of the code objects, the innermost first.
    pub fn codes(&self) -> impl Iterator<Item = u64> + '_ {
        self.frames.iter().map(|frame| frame.code).filter(|code| *code != 0)
    }

    /// Puts frames in place of those of the loop. The first native frame is the sampled one: it stays, and runs the first
    /// ones if it is the loop's. A code without a name is left out; where a loop has no other, it stays.
    #[must_use]
    pub fn interleave(
        &self,
        native: &[u64],
        is_native_whole: bool,
        is_loop: &dyn Fn(u64) -> bool,
        has_name: &dyn Fn(u64) -> bool,
    ) -> Vec<u64> {
        let mut runs: Vec<&[Frame]> =
            self.frames.split_inclusive(|frame| frame.is_called_by_c).collect();
        let n_loops = native.iter().filter(|address| is_loop(**address)).count();
        // Where all is there the outermost belong together. The innermost loop may be about to begin a frame; or it is in code
        // that is not recognized, as the compiler moved it away.
        let is_all_there = is_native_whole && self.is_whole;
        let excess = |more: usize, less: usize| {
            if is_all_there { more.saturating_sub(less) } else { 0 }
        };
        let (n_extra, n_early) = (excess(runs.len(), n_loops), excess(n_loops, runs.len()));
        let named = |run: &[Frame]| -> Vec<u64> {
            let codes = run.iter().map(|frame| frame.code);
            codes.filter(|code| *code != 0 && has_name(*code)).collect()
        };
        let extra: Vec<u64> = runs.drain(..n_extra).flat_map(named).collect();
        let mut runs = repeat_n(&[][..], n_early).chain(runs);
        let mut frames = Vec::with_capacity(native.len().saturating_add(self.frames.len()));
        for (n, address) in native.iter().enumerate() {
            let run = runs.by_ref().take(usize::from(is_loop(*address)));
            let codes: Vec<u64> = run.flat_map(named).collect();
            if n == 0 || codes.is_empty() {
                frames.push(*address);
            }
            if n == 0 {
                frames.extend_from_slice(&extra);
            }
            frames.extend(codes);
        }
        // Callers that the native part does not lead to.
        if !is_native_whole {
            frames.extend(runs.flat_map(named));
        }
        frames
    }
}

#[cfg(test)]
mod test {
    use super::*;

    const VERSION_3_12: u64 = 0x030c_01f0;

    fn layout(version: u64) -> Layout {
        Layout::new(version, &[]).unwrap()
    }

    fn copy(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// A word that BPF copies, with its mark.
    fn marked(code: u64, mark: u64) -> u64 {
        code | mark << MARK_SHIFT
    }

    /// Native frames: the loop's are 9. Python's: code objects from 100 on, a run between bars.
    #[track_caller]
    fn check(native: &[u64], is_native_whole: bool, runs: &[&[u64]], end: u64, expected: &[u64]) {
        for version in [0x030b_02f0, VERSION_3_12] {
            let mut words = Vec::new();
            for run in runs {
                let last = run.len() - 1;
                let mark = |n: usize| if n == last && version != VERSION_3_12 { 1 } else { 0 };
                words.extend(run.iter().enumerate().map(|(n, code)| marked(*code, mark(n))));
                words.extend((version == VERSION_3_12).then_some(marked(77, 3)));
            }
            words.push(end);
            let frames = layout(version).frames(&copy(&words));
            let found =
                frames.interleave(native, is_native_whole, &|it| it == 9, &|code| code != 199);
            assert_eq!(found, expected, "{version:#x}");
        }
    }

    #[test]
    fn frames_of_python_stand_in_place_of_the_loop() {
        let (whole, cut) = (true, false);
        check(&[1, 9, 2], whole, &[&[100, 101]], END, &[1, 100, 101, 2]);
        // The sampled instruction is the loop's own.
        check(&[9, 2, 9, 3], whole, &[&[100], &[101, 102]], END, &[9, 100, 2, 101, 102, 3]);
        // The innermost loop has no frame yet, or is in code that is not recognized.
        check(&[9, 2, 9, 3], whole, &[&[101]], END, &[9, 2, 101, 3]);
        check(&[1, 2, 9, 3], whole, &[&[100], &[101]], END, &[1, 100, 2, 101, 3]);
        // The native part ends early: Python's callers are known nevertheless.
        check(&[1, 9, 2], cut, &[&[100], &[101, 102]], END, &[1, 100, 2, 101, 102]);
        // Python's part ends early.
        check(&[1, 9, 2, 9, 3], whole, &[&[100], &[101]], UNREADABLE, &[1, 100, 2, 101, 3]);
        check(&[1, 9, 2, 9, 3], whole, &[&[100]], UNREADABLE, &[1, 100, 2, 9, 3]);
        // Without a name.
        check(&[1, 9, 2], whole, &[&[199]], END, &[1, 9, 2]);
        check(&[1, 9, 2], whole, &[&[199, 101]], END, &[1, 101, 2]);
    }

    #[test]
    fn a_full_copy_may_lack_callers() {
        let words: Vec<u64> = (0..128).map(|n| marked(100 + n, 0)).collect();
        let frames = layout(VERSION_3_12).frames(&copy(&words));
        assert_eq!((frames.codes().count(), frames.is_whole), (128, false));
        assert_eq!(layout(VERSION_3_12).frames(&[]), Frames::default());
    }

    #[test]
    fn other_versions_are_left_alone() {
        for version in [0, 0x030a_0000, 0x030e_0000, u64::MAX] {
            assert_eq!(Layout::new(version, &[0; RUNTIME_BYTES]), None, "{version:#x}");
        }
        // It publishes no offsets.
        assert_eq!(Layout::new(0x030d_00f0, &[0; RUNTIME_BYTES]), None);
        assert_eq!(Layout::new(0x030d_00f0, b"xdebugpy"), None);
    }
}
