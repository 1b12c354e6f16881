//! The spool of switch events: blocks whose keys are the earliest and the latest time in them.

use std::path::Path;

use model::Switch;

use super::cut_dangling;
use super::record::{SWITCH_SIZE, decode, encode};
use crate::blocks::{BLOCK_BYTES, BlockFile, BlockHeader, BlockReader, length};
use crate::columns::SLICE;
use crate::error::Error;

const SWITCHES: u32 = u32::from_le_bytes(*b"VSW1");
const BLOCK_EVENTS: usize = BLOCK_BYTES / SWITCH_SIZE;

/// Takes the events of vCPUs' threads while recording; all CPUs' in one file.
#[derive(Debug)]
pub struct SwitchSpool {
    blocks: BlockFile,
    payload: Vec<u8>,
}

impl SwitchSpool {
    pub(crate) fn create(path: &Path) -> Result<Self, Error> {
        Ok(Self { blocks: BlockFile::create(path)?, payload: Vec::new() })
    }

    /// Appends events in any order. They are in the file when this returns; after an error none of the
    /// block that failed is.
    ///
    /// # Errors
    /// When they can't be written.
    pub fn append(&mut self, switches: &[Switch]) -> Result<(), Error> {
        for block in switches.chunks(BLOCK_EVENTS) {
            self.payload.clear();
            block.iter().for_each(|switch| self.payload.extend_from_slice(&encode(switch)));
            let header = BlockHeader {
                kind: SWITCHES,
                cpu: 0,
                count: length(block.len()),
                payload: length(self.payload.len()),
                keys: span(block),
            };
            self.blocks.append(&header, &self.payload)?;
        }
        Ok(())
    }
}

/// Reads a spool of switch events, as far as it is whole.
#[derive(Debug)]
pub(crate) struct SwitchSpoolReader {
    blocks: BlockReader,
    payload: Vec<u8>,
}

/// What a killed recording's spool of switch events holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SwitchSurvey {
    pub(crate) switches: u64,
    /// Those of vCPUs that are in no table.
    pub(crate) dangling: u64,
    pub(crate) last_ns: u64,
    pub(crate) lost_bytes: u64,
}

impl SwitchSpoolReader {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self { blocks: BlockReader::open(path)?, payload: Vec::new() })
    }

    /// Fills `batch` with the events of as many blocks as make a slice, in time order; false at the end.
    pub(crate) fn next_batch(&mut self, batch: &mut Vec<Switch>) -> Result<bool, Error> {
        batch.clear();
        while batch.len() + BLOCK_EVENTS <= SLICE && self.next_block(batch)? {}
        batch.sort_by_key(|switch| switch.time);
        Ok(!batch.is_empty())
    }

    /// Passes over all blocks of a recording with that many vCPUs.
    pub(crate) fn survey(mut self, vcpus: usize) -> Result<SwitchSurvey, Error> {
        let mut survey = SwitchSurvey::default();
        let mut block = Vec::new();
        while self.next_block(&mut block)? {
            survey.switches += block.len() as u64;
            survey.last_ns = survey.last_ns.max(span(&block)[1]);
            survey.dangling += cut_dangling(&mut block, vcpus) as u64;
            block.clear();
        }
        survey.lost_bytes = self.lost_bytes();
        Ok(survey)
    }

    /// Bytes after the last readable block; meaningful at the end.
    pub(crate) fn lost_bytes(&self) -> u64 {
        self.blocks.lost_bytes()
    }

    /// Adds the next block's events; false at the end of what is readable.
    fn next_block(&mut self, batch: &mut Vec<Switch>) -> Result<bool, Error> {
        let Some(header) = self.blocks.next(&mut self.payload)? else { return Ok(false) };
        let before = batch.len();
        let (records, rest) = self.payload.as_chunks::<SWITCH_SIZE>();
        batch.extend(records.iter().map_while(decode));
        let block = &batch[before..];
        let good = header.kind == SWITCHES
            && rest.is_empty()
            && !block.is_empty()
            && block.len() == records.len()
            && block.len() == header.count as usize
            && header.keys == span(block);
        if !good {
            batch.truncate(before);
            self.blocks.reject(&header);
        }
        Ok(good)
    }
}

/// The earliest and the latest time.
fn span(block: &[Switch]) -> [u64; 2] {
    let times = || block.iter().map(|switch| switch.time.0);
    [times().min().unwrap_or(0), times().max().unwrap_or(0)]
}
