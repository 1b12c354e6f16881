//! Modules, mappings, symbols and call stacks.

use std::iter::zip;

use model::{BuildId, HostVirt, ImageId, Mapping, Module, ModuleId, Stack, Symbol, SymbolName};

use super::{check_ids, id_column, owner_of, vm_of};
use crate::columns::{Column, TableReader};
use crate::error::Error;

pub(super) fn modules_columns(modules: &[Module]) -> Vec<Column> {
    let build_ids: Vec<_> =
        modules.iter().map(|module| module.build_id.as_ref().map(ToString::to_string)).collect();
    vec![
        id_column(modules.len()),
        Column::optional_u32("vm", modules.iter().map(|module| vm_of(module.owner))),
        Column::text("path", modules.iter().map(|module| module.path.as_str())),
        Column::optional_text("build_id", build_ids.iter().map(Option::as_deref)),
    ]
}

pub(super) fn read_modules(table: &TableReader) -> Result<Vec<Module>, Error> {
    check_ids(table)?;
    let texts = zip(table.text("path")?, table.optional_text("build_id")?);
    let row = |(vm, (path, hex)): (_, (_, Option<String>))| {
        let build_id = hex.as_deref().map(BuildId::from_hex);
        match build_id {
            Some(None) => Err(table.damaged("a build id is none")),
            _ => Ok(Module { owner: owner_of(vm), path, build_id: build_id.flatten() }),
        }
    };
    zip(table.optional_u32("vm")?, texts).map(row).collect()
}

pub(super) fn mappings_columns(mappings: &[Mapping]) -> Vec<Column> {
    vec![
        Column::u32("image", mappings.iter().map(|mapping| mapping.image.0)),
        Column::u64("start", mappings.iter().map(|mapping| mapping.start)),
        Column::u64("end", mappings.iter().map(|mapping| mapping.end)),
        Column::u64("offset", mappings.iter().map(|mapping| mapping.offset)),
        Column::u32("module", mappings.iter().map(|mapping| mapping.module.0)),
    ]
}

pub(super) fn read_mappings(table: &TableReader) -> Result<Vec<Mapping>, Error> {
    let ids = zip(table.u32("image")?, table.u32("module")?);
    let range = zip(table.u64("start")?, zip(table.u64("end")?, table.u64("offset")?));
    let row = |((image, module), (start, (end, offset)))| Mapping {
        image: ImageId(image),
        start,
        end,
        offset,
        module: ModuleId(module),
    };
    Ok(zip(ids, range).map(row).collect())
}

pub(super) fn symbols_columns(symbols: &[Symbol]) -> Vec<Column> {
    let function = |symbol| match symbol {
        &Symbol { name: SymbolName::Function(ref name), .. } => Some(name.as_str()),
        _ => None,
    };
    let unreadable = |symbol| match symbol {
        &Symbol { name: SymbolName::Unreadable(ref reason), .. } => Some(reason.as_str()),
        _ => None,
    };
    vec![
        Column::u32("module", symbols.iter().map(|symbol| symbol.module.0)),
        Column::u64("offset", symbols.iter().map(|symbol| symbol.offset)),
        Column::optional_text("function", symbols.iter().map(function)),
        Column::optional_text("unreadable_reason", symbols.iter().map(unreadable)),
    ]
}

pub(super) fn read_symbols(table: &TableReader) -> Result<Vec<Symbol>, Error> {
    let places = zip(table.u32("module")?, table.u64("offset")?);
    let texts = zip(table.optional_text("function")?, table.optional_text("unreadable_reason")?);
    let row = |((module, offset), texts)| {
        let name = match texts {
            (Some(function), None) => SymbolName::Function(function),
            (None, None) => SymbolName::Stripped,
            (None, Some(reason)) => SymbolName::Unreadable(reason),
            (Some(_), Some(_)) => return Err(table.damaged("a symbol is named and unreadable")),
        };
        Ok(Symbol { module: ModuleId(module), offset, name })
    };
    zip(places, texts).map(row).collect()
}

pub(super) fn stacks_columns(stacks: &[Stack]) -> Vec<Column> {
    let kernel: Vec<_> = stacks.iter().map(|stack| addresses(&stack.kernel)).collect();
    let user: Vec<_> = stacks.iter().map(|stack| addresses(&stack.user)).collect();
    vec![
        id_column(stacks.len()),
        Column::u64_list("kernel", kernel.iter().map(Vec::as_slice)),
        Column::u64_list("user", user.iter().map(Vec::as_slice)),
    ]
}

pub(super) fn read_stacks(table: &TableReader) -> Result<Vec<Stack>, Error> {
    check_ids(table)?;
    let host = |half: Vec<u64>| half.into_iter().map(HostVirt).collect();
    let row = |(kernel, user)| Stack { kernel: host(kernel), user: host(user) };
    Ok(zip(table.u64_list("kernel")?, table.u64_list("user")?).map(row).collect())
}

fn addresses(half: &[HostVirt]) -> Vec<u64> {
    half.iter().map(|address| address.0).collect()
}
