//! Rules from a file's `.eh_frame`, found by `.eh_frame_hdr`. Pages of either may be missing.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, EhFrameOffset, EndianSlice, FrameDescriptionEntry,
    LittleEndian, Operation, RegisterRule, UnwindContext, UnwindContextStorage, UnwindExpression,
    UnwindSection as _, UnwindTableRow, X86_64,
};
use linux::elf::{Bytes, Headers, Part, Present, ReadAt};
use model::StackEnd;

use crate::rule::{KEPT, Kind, Rule, register};

/// What is read of one section: rustc has 6 MiB.
const MAX_SECTION_BYTES: u64 = 24 << 20;
/// Headers and notes take less.
const MAX_READ_BYTES: u64 = 128 << 20;
/// The largest description of a function or of what functions share. Some 100 bytes are usual.
const MAX_ENTRY_BYTES: usize = 1 << 16;
/// Most different descriptions that functions may share: linkers leave a few dozens.
pub const MAX_COMMON: usize = 256;
/// What a search in the index costs, in bytes of a description.
const SEARCH_COST: usize = 64;
/// The index as all linkers write it: version 1; where `.eh_frame` is, relative; a count; pairs relative to the index.
const INDEX_FORM: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
const INDEX_HEADER_BYTES: usize = 12;
/// `struct rt_sigframe`: where the interrupted stack pointer is stored.
const SIGNAL_SP: i64 = 160;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Rows have at most 17 registers each, and are kept on a stack for `DW_CFA_remember_state`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rows;

impl UnwindContextStorage<usize> for Rows {
    type Rules = [(gimli::Register, RegisterRule<usize>); 32];
    type Stack = [UnwindTableRow<usize, Self>; 8];
}

/// What evaluating tables needs, and how much of it may still be done.
pub struct Workspace {
    context: Box<UnwindContext<usize, Rows>>,
    bytes_left: usize,
}

impl Default for Workspace {
    fn default() -> Self {
        Self { context: Box::new(UnwindContext::new_in()), bytes_left: 0 }
    }
}

impl fmt::Debug for Workspace {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Workspace").field("bytes_left", &self.bytes_left).finish_non_exhaustive()
    }
}

impl Workspace {
    /// Allows so many bytes of tables to be evaluated from now on.
    pub fn allow(&mut self, bytes: usize) {
        self.bytes_left = bytes;
    }

    fn charge(&mut self, bytes: usize) -> Result<(), StackEnd> {
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or(StackEnd::TooMuchWork)?;
        Ok(())
    }
}

/// The unwind tables of one file.
#[derive(Debug)]
pub struct FrameTable {
    headers: Headers,
    /// `None`: the functions keep frame pointers.
    frames: Option<Frames>,
}

/// `.eh_frame`
#[derive(Debug)]
struct Frames {
    address: u64,
    present: Present,
    /// Where functions begin, relative to `address`, and their descriptions; ascending.
    index: Vec<(i32, u32)>,
    /// Some of the index is missing.
    is_index_cut: bool,
}

impl FrameTable {
    /// Reads the tables of a file.
    ///
    /// # Errors
    /// It is no program of x86-64, has none, or they are missing.
    pub fn read(file: &dyn ReadAt) -> Result<Self, StackEnd> {
        let bytes = Bytes::new(file, MAX_READ_BYTES);
        let headers = Headers::read(&bytes).map_err(|_| StackEnd::NoTables)?;
        let frames = match headers.eh_frame {
            Some(frames) if headers.is_64_bit => Some(Frames::read(&bytes, &headers, frames)?),
            None if headers.is_go => None,
            _ => return Err(StackEnd::NoTables),
        };
        Ok(Self { headers, frames })
    }

    /// What a mapping of the file adds to its addresses. See `Headers::bias`.
    #[must_use]
    pub fn bias(&self, start: u64, offset: u64) -> Option<u64> {
        self.headers.bias(start, offset)
    }

    /// The file's build id, if it has one.
    #[must_use]
    pub fn build_id(&self) -> Option<&[u8]> {
        self.headers.build_id.as_ref().map(|id| id.bytes())
    }

    /// Whether pages of the tables were missing.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        let is_cut = |frames: &Frames| frames.is_index_cut || !frames.present.is_whole();
        self.frames.as_ref().is_some_and(is_cut)
    }

    /// Bytes that are kept of it.
    #[must_use]
    pub fn n_bytes(&self) -> usize {
        let bytes = |frames: &Frames| {
            let index = frames.index.len().saturating_mul(size_of::<(i32, u32)>());
            frames.present.bytes().len().saturating_add(index)
        };
        self.frames.as_ref().map_or(0, bytes)
    }

    /// The rule of an address of the file.
    pub(crate) fn rule(&self, address: u64, workspace: &mut Workspace) -> Result<Rule, StackEnd> {
        let Some(frames) = &self.frames else { return Ok(Rule::FRAME_POINTER) };
        match frames.rule(address, workspace) {
            // Go's functions in a file that has some of C, too.
            Err(StackEnd::NoRule) if self.headers.is_go => Ok(Rule::FRAME_POINTER),
            found => found,
        }
    }
}

impl Frames {
    fn read(bytes: &Bytes<'_>, headers: &Headers, part: Part) -> Result<Self, StackEnd> {
        let present = bytes.window(part.range).present(MAX_SECTION_BYTES);
        let mut frames =
            Self { address: part.address, present, index: Vec::new(), is_index_cut: false };
        match headers.frame_index {
            Some(index) => frames.read_index(bytes, index)?,
            // What is linked statically has none.
            None => frames.make_index(),
        }
        Ok(frames)
    }

    fn read_index(&mut self, bytes: &Bytes<'_>, part: Part) -> Result<(), StackEnd> {
        let window = bytes.window(part.range);
        let header = window.array::<INDEX_HEADER_BYTES>(0).map_err(|_| StackEnd::NoTables)?;
        let [i0, i1, i2, i3, _, _, _, _, count @ ..] = header;
        if [i0, i1, i2, i3] != INDEX_FORM {
            return Err(StackEnd::NoTables);
        }
        let start = part.range.0.saturating_add(INDEX_HEADER_BYTES as u64);
        let size = u64::from(u32::from_le_bytes(count)).saturating_mul(8);
        let pairs = bytes.window((start, size)).present(MAX_SECTION_BYTES);
        self.is_index_cut = !pairs.is_whole();
        let to_frames = part.address.wrapping_sub(self.address).cast_signed();
        let relative = |word: [u8; 4]| to_frames.wrapping_add(i32::from_le_bytes(word).into());
        self.index.extend(pairs.pieces(8).filter_map(|pair| {
            let [a, b, c, d, e, f, g, h] = *pair.first_chunk()?;
            let [start, at] = [[a, b, c, d], [e, f, g, h]].map(relative);
            Some((i32::try_from(start).ok()?, u32::try_from(at).ok()?))
        }));
        Ok(())
    }

    fn make_index(&mut self) {
        let bases = BaseAddresses::default().set_eh_frame(self.address);
        let section = section(self.present.bytes());
        let index = described_functions(&section, &bases).filter_map(|function| {
            let start = function.start.wrapping_sub(self.address).cast_signed();
            Some((i32::try_from(start).ok()?, u32::try_from(function.description).ok()?))
        });
        self.index = index.collect();
        self.index.sort_unstable();
    }

    fn rule(&self, address: u64, workspace: &mut Workspace) -> Result<Rule, StackEnd> {
        workspace.charge(SEARCH_COST)?;
        let entry = self.entry(self.find(address)?)?;
        workspace.charge(entry.len())?;
        let section = section(self.present.bytes());
        let bases = BaseAddresses::default().set_eh_frame(self.address);
        let mut common = Err(StackEnd::NoRule);
        let get_common = |section: &EhFrame<_>, bases: &_, at: EhFrameOffset<usize>| {
            common = self.entry(at.0);
            common.as_ref().map_err(|_| gimli::Error::NoUnwindInfoForAddress)?;
            section.cie_from_offset(bases, at)
        };
        let description = section.fde_from_offset(&bases, entry.start.into(), get_common);
        workspace.charge(common?.len())?;
        let description = description.map_err(|_| StackEnd::NoRule)?;
        if !description.contains(address) {
            return Err(self.none());
        }
        let context = &mut workspace.context;
        let row = description.unwind_info_for_address(&section, &bases, context, address);
        let row = row.map_err(|_| StackEnd::NoRule)?;
        let row = Row { row, description: &description, section: &section, address };
        row.rule().ok_or(StackEnd::NoRule)
    }

    /// Where the description of the function is that may hold `address`.
    fn find(&self, address: u64) -> Result<usize, StackEnd> {
        let wanted = address.wrapping_sub(self.address).cast_signed();
        let after = self.index.partition_point(|(start, _)| i64::from(*start) <= wanted);
        let found = after.checked_sub(1).and_then(|at| self.index.get(at));
        found.and_then(|(_, at)| usize::try_from(*at).ok()).ok_or(self.none())
    }

    /// Why an index has nothing.
    fn none(&self) -> StackEnd {
        if self.is_index_cut { StackEnd::NoTables } else { StackEnd::NoRule }
    }

    /// The bytes of a description: its length, and what that says.
    fn entry(&self, at: usize) -> Result<Range<usize>, StackEnd> {
        let header = at..at.saturating_add(4);
        let rest = self.present.bytes().get(at..).unwrap_or_default();
        let length = rest.first_chunk().filter(|_| self.present.is_present(header));
        let length = u32::from_le_bytes(*length.ok_or(StackEnd::NoTables)?);
        let length = usize::try_from(length).unwrap_or(usize::MAX).saturating_add(4);
        let entry = at..at.saturating_add(length);
        if MAX_ENTRY_BYTES < length || length <= 8 {
            return Err(StackEnd::NoRule);
        }
        if self.present.is_present(entry.clone()) { Ok(entry) } else { Err(StackEnd::NoTables) }
    }
}

fn section(bytes: &[u8]) -> EhFrame<Slice<'_>> {
    let mut section = EhFrame::new(bytes, LittleEndian);
    section.set_address_size(8);
    section
}

/// A function that `.eh_frame` describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescribedFunction {
    pub start: u64,
    /// Bytes.
    pub size: u64,
    /// Where in the section its description is.
    pub description: usize,
}

/// All functions up to the first entry that makes no sense: the next one's begin is unknown.
pub fn described_functions<'a>(
    section: &'a EhFrame<Slice<'a>>,
    bases: &'a BaseAddresses,
) -> impl Iterator<Item = DescribedFunction> {
    let mut entries = section.entries(bases);
    let mut common = BTreeMap::new();
    std::iter::from_fn(move || entries.next().ok()?)
        .filter_map(move |entry| {
            let CieOrFde::Fde(partial) = entry else { return None };
            let at = partial.cie_offset();
            if common.len() == MAX_COMMON && !common.contains_key(&at.0) {
                return None;
            }
            let cie = common.entry(at.0).or_insert_with(|| section.cie_from_offset(bases, at));
            let fde = partial.parse(|_, _, _| cie.clone()).ok()?;
            Some(DescribedFunction {
                start: fde.initial_address(),
                size: fde.len(),
                description: fde.offset(),
            })
        })
        .filter(|function| 0 < function.size)
}

/// What a file says of an address.
struct Row<'a> {
    row: &'a UnwindTableRow<usize, Rows>,
    description: &'a FrameDescriptionEntry<Slice<'a>>,
    section: &'a EhFrame<Slice<'a>>,
    address: u64,
}

/// A place in memory that an expression tells.
struct Place {
    base: u8,
    offset: i64,
    /// It is this much above what is stored there.
    indirect: Option<i64>,
}

impl Row<'_> {
    /// `None`: it is of a form that no compiler writes.
    fn rule(&self) -> Option<Rule> {
        let cfa = match self.row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                Place { base: number(*register)?, offset: *offset, indirect: None }
            }
            CfaRule::Expression(expression) => self.place(expression)?,
        };
        let is_interrupted = self.description.is_signal_trampoline();
        match self.row.register(X86_64::RA) {
            None | Some(RegisterRule::Undefined) => return Some(Rule::START),
            Some(RegisterRule::Offset(-8)) => {}
            Some(_) if is_interrupted => {
                let is_signal =
                    cfa.base == register::SP && cfa.offset == SIGNAL_SP && cfa.indirect == Some(0);
                return is_signal.then(|| Rule::block(Kind::Signal, register::SP, 0));
            }
            Some(_) => return None,
        }
        let mut rule = Rule {
            kind: Kind::Call,
            base: cfa.base,
            offset: i32::try_from(cfa.offset).ok()?,
            indirect: cfa.indirect.map(i16::try_from).transpose().ok()?,
            is_interrupted,
            ..Rule::RETURN
        };
        let mut from_base = [false; 2];
        for (saved, register) in rule.saved.iter_mut().zip(KEPT) {
            let bytes = match self.row.register(gimli::Register(register.into())) {
                None | Some(RegisterRule::SameValue | RegisterRule::Undefined) => continue,
                Some(RegisterRule::Offset(offset)) => {
                    from_base[0] = true;
                    offset
                }
                Some(RegisterRule::Expression(expression)) => {
                    let place = self.place(&expression)?;
                    if place.base != cfa.base || place.indirect.is_some() {
                        return None;
                    }
                    if cfa.indirect.is_none() {
                        from_base[0] = true;
                        place.offset.checked_sub(cfa.offset)?
                    } else {
                        from_base[1] = true;
                        place.offset
                    }
                }
                Some(_) => return None,
            };
            *saved = i16::try_from(bytes.checked_div(8)?).ok().filter(|_| bytes & 7 == 0)?;
        }
        rule.is_saved_from_base = from_base[1];
        (from_base != [true; 2]).then_some(rule)
    }

    fn place(&self, expression: &UnwindExpression<usize>) -> Option<Place> {
        let expression = expression.get(self.section).ok()?;
        if let Some(offset) = stub_offset(expression.0.slice(), self.address) {
            return Some(Place { base: register::SP, offset, indirect: None });
        }
        let mut operations = expression.operations(self.description.cie().encoding());
        let mut next = || operations.next().ok();
        let Some(Operation::RegisterOffset { register, offset, .. }) = next()? else { return None };
        let mut place = Place { base: number(register)?, offset, indirect: None };
        let Some(operation) = next()? else { return Some(place) };
        let Operation::Deref { size: 8, space: false, .. } = operation else { return None };
        place.indirect = Some(match next()? {
            None => 0,
            Some(Operation::PlusConstant { value }) => i64::try_from(value).ok()?,
            Some(_) => return None,
        });
        next()?.is_none().then_some(place)
    }
}

/// A linker's stubs for functions of other files (PLT) are of 16 bytes each, and push a word in the last of them:
/// `DW_OP_breg7 8, breg16 0, lit15, and, litN, ge, lit3, shl, plus`.
fn stub_offset(expression: &[u8], address: u64) -> Option<i64> {
    let [0x77, 8, 0x80, 0, 0x3f, 0x1a, pushed @ 0x30..=0x3f, 0x2a, 0x33, 0x24, 0x22] = expression
    else {
        return None;
    };
    Some(if u64::from(pushed & 0xf) <= address & 0xf { 16 } else { 8 })
}

fn number(register: gimli::Register) -> Option<u8> {
    u8::try_from(register.0).ok().filter(|register| *register < 16)
}

#[cfg(test)]
mod test;
