//! What `vmscope` asks a child process without privileges about files, names and messages that others chose, and what that
//! answers. The files' descriptors come with a question.
//!
//! An answer is hostile: what was read may have made it. No list grows beyond the limit its field names here.

use serde::{Deserialize, Serialize};

use crate::bytes;
use crate::guest::{MAX_ANSWER_BYTES, Response, at_most};

/// Most places of one question.
pub const MAX_PLACES: usize = 1 << 20;

/// Most different functions of one answer, and names of one question.
pub const MAX_FUNCTIONS: usize = 1 << 18;

/// The request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SymbolQuestion {
    /// The build id of an ELF file. Answer: `BuildId`.
    BuildId,
    /// The functions at places of a file. Answer: `Functions`.
    Functions {
        format: FileFormat,
        /// Offsets in the file, or addresses; ascending.
        places: Vec<u64>,
        /// How many bytes may be read.
        max_bytes: u64,
    },
    /// These names in readable form. Answer: `Readable`.
    Readable(#[serde(deserialize_with = "at_most::<_, _, MAX_FUNCTIONS>")] Vec<String>),
    /// What a guest sent: the content of a frame. Answer: `GuestAnswer`.
    GuestAnswer(
        #[serde(
            serialize_with = "bytes::serialize",
            deserialize_with = "bytes::at_most::<_, MAX_ANSWER_BYTES>"
        )]
        Vec<u8>,
    ),
}

/// What a file is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileFormat {
    /// An ELF file; places are offsets in it. A second file may have the symbols that it lacks.
    Elf {
        /// Which build id the file must have.
        build_id: Option<Vec<u8>>,
    },
    /// A `/tmp/perf-PID.map`; places are addresses.
    PerfMap,
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SymbolAnswer {
    /// The file's build id, if it has one.
    BuildId(Option<Vec<u8>>),
    Functions {
        /// How many bytes were read for it.
        read_bytes: u64,
        /// The functions, or why there are none.
        functions: Result<FileFunctions, String>,
    },
    /// The names, in their order.
    Readable(#[serde(deserialize_with = "at_most::<_, _, MAX_FUNCTIONS>")] Vec<String>),
    GuestAnswer(Result<Response, InvalidAnswer>),
}

/// Why what a guest sent is no answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum InvalidAnswer {
    /// It is a map of this other version of the protocol.
    Version(u32),
    /// It is no message: why.
    Garbled(String),
}

/// Functions at places of a file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FileFunctions {
    /// Their names, in readable form.
    #[serde(deserialize_with = "at_most::<_, _, MAX_FUNCTIONS>")]
    pub names: Vec<String>,
    /// For each place that was requested, the number of its function in `names`.
    #[serde(deserialize_with = "at_most::<_, _, MAX_PLACES>")]
    pub at_places: Vec<Option<u32>>,
    /// Why a function may be missing here.
    pub missing: Option<String>,
}
