//! The executable memory of a process.

use model::StackEnd;

use crate::cfi::{FrameTable, Workspace};
use crate::rule::Rule;
use crate::walk::Code;

/// A range of a process' executable addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    pub start: u64,
    /// First address after it.
    pub end: u64,
    pub code: AreaCode,
}

/// What code is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AreaCode {
    /// A file's, by its number, from this offset on.
    File { file: u32, offset: u64 },
    /// Without a file: made by a program that keeps frame pointers, if anything.
    Generated,
}

/// Files that processes map.
pub trait Files {
    /// The unwind tables of a file.
    ///
    /// # Errors
    /// Why there are none.
    fn table(&mut self, file: u32) -> Result<&FrameTable, StackEnd>;
}

/// What a process executes.
pub struct Process<'a> {
    /// See `Code::number`.
    pub number: u32,
    /// By address, without overlaps.
    pub areas: &'a [Area],
    pub files: &'a mut dyn Files,
}

impl std::fmt::Debug for Process<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Process")
            .field("number", &self.number)
            .field("areas", &self.areas)
            .finish_non_exhaustive()
    }
}

impl Code for Process<'_> {
    fn number(&self) -> u32 {
        self.number
    }

    fn rule(&mut self, address: u64, workspace: &mut Workspace) -> Result<Rule, StackEnd> {
        let after = self.areas.partition_point(|area| area.start <= address);
        let area = after.checked_sub(1).and_then(|at| self.areas.get(at));
        let area = area.filter(|area| address < area.end).ok_or(StackEnd::Outside)?;
        let AreaCode::File { file, offset } = area.code else { return Ok(Rule::FRAME_POINTER) };
        let table = self.files.table(file)?;
        let bias = table.bias(area.start, offset).ok_or(StackEnd::NoTables)?;
        table.rule(address.wrapping_sub(bias), workspace)
    }
}
