//! What a child without privileges does with files and names that others chose.

use std::collections::HashMap;
use std::fs::File;

use api::symbols::{FileFormat, FileFunctions, MAX_FUNCTIONS, SymbolAnswer, SymbolQuestion};
use host::open_file::OpenFile;
use model::BuildId;
use sandbox::Parser;

use super::{FileNames, build_id, perf_map};
use crate::Function;
use crate::demangle::Demangler;

/// Most bytes of readable names in one answer.
const MAX_NAME_BYTES: usize = 32 << 20;

/// Reads functions of files that host processes map or write, mangled names, and guests' answers.
#[derive(Debug)]
pub struct SymbolReader {
    demangler: Demangler,
}

impl Parser for SymbolReader {
    type Question = SymbolQuestion;
    type Answer = SymbolAnswer;
    const NAME: &'static str = "vmscope-symbols";

    fn start() -> Self {
        Self { demangler: Demangler::started() }
    }

    fn is_spent(&self) -> bool {
        self.demangler.gave_up()
    }

    fn answer(&mut self, question: &SymbolQuestion, files: &[&File]) -> SymbolAnswer {
        match (question, files.first()) {
            (SymbolQuestion::Readable(names), _) => {
                let readable = names.iter().map(|name| self.demangler.demangle(name));
                SymbolAnswer::Readable(readable.collect())
            }
            (SymbolQuestion::GuestAnswer(content), _) => {
                SymbolAnswer::GuestAnswer(guest::decode_answer(content))
            }
            (_, None) => {
                SymbolAnswer::Functions { read_bytes: 0, functions: Err("no file".to_owned()) }
            }
            (SymbolQuestion::BuildId, Some(file)) => {
                SymbolAnswer::BuildId(build_id(file).map(|id| id.bytes().to_vec()))
            }
            (SymbolQuestion::Functions { format, places, max_bytes }, Some(file)) => {
                let mut left = *max_bytes;
                let functions = match format {
                    FileFormat::Elf { build_id } => {
                        let expected = build_id.as_deref().and_then(BuildId::new);
                        let debug = files.get(1).and_then(|debug| OpenFile::new(debug).ok());
                        let debug = debug.as_ref().map(|debug| debug as _);
                        OpenFile::new(file).map_err(|error| error.to_string()).and_then(|file| {
                            FileNames::read(&file, debug, expected.as_ref(), places, &mut left)
                                .map(|names| self.elf_functions(&names, places))
                        })
                    }
                    FileFormat::PerfMap => {
                        let table = perf_map::read(*file, places, &mut left);
                        Ok(self.functions(places, |place| table.find(place)))
                    }
                };
                SymbolAnswer::Functions { read_bytes: max_bytes.saturating_sub(left), functions }
            }
        }
    }
}

impl SymbolReader {
    fn elf_functions(&mut self, names: &FileNames, places: &[u64]) -> FileFunctions {
        let functions = self.functions(places, |place| names.find(place));
        let missing = names.why_missing().map(str::to_owned);
        FileFunctions { missing: functions.missing.or(missing), ..functions }
    }

    /// Each function's name once.
    fn functions<'a>(
        &mut self,
        places: &[u64],
        find: impl Fn(u64) -> Option<&'a Function>,
    ) -> FileFunctions {
        let mut functions = FileFunctions::default();
        let mut numbers: HashMap<*const Function, u32> = HashMap::new();
        let mut name_bytes = 0_usize;
        for place in places {
            let number = find(*place).and_then(|function| {
                let known = numbers.get(&std::ptr::from_ref(function));
                known.copied().or_else(|| {
                    let number = u32::try_from(numbers.len()).ok()?;
                    let name = self.demangler.demangle(&function.name);
                    name_bytes = name_bytes.saturating_add(name.len());
                    if MAX_NAME_BYTES < name_bytes || MAX_FUNCTIONS <= functions.names.len() {
                        functions.missing = Some("its names are too many or too long".to_owned());
                        return None;
                    }
                    functions.names.push(name);
                    numbers.insert(function, number);
                    Some(number)
                })
            });
            functions.at_places.push(number);
        }
        functions
    }
}
