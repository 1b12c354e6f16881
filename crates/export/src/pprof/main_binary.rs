//! The main binary of a profile: readers take the first mapping for it (`File:` of `pprof`).

use super::proto::{Mapping, Profile};

/// Puts the program that most samples are in before all other mappings. Ids stay as they are.
pub(super) fn put_first(profile: &mut Profile) {
    let mut samples = vec![0_i64; profile.mapping.len()];
    for sample in &profile.sample {
        let mut mappings = sample.location_id.iter().filter_map(|id| row_of(profile, *id));
        if let Some(row) = mappings.find(|row| is_program(profile, &profile.mapping[*row])) {
            let count = sample.value.first().copied().unwrap_or(0);
            samples[row] = samples[row].saturating_add(count);
        }
    }
    let most = samples.iter().copied().max().filter(|most| 0 < *most);
    if let Some(row) = most.and_then(|most| samples.iter().position(|it| *it == most)) {
        profile.mapping[..=row].rotate_right(1);
    }
}

/// Row of a location's mapping. Ids begin at 1; 0: no mapping.
fn row_of(profile: &Profile, location: u64) -> Option<usize> {
    let row = |id: u64| usize::try_from(id).ok()?.checked_sub(1);
    let mapping = profile.location.get(row(location)?)?.mapping_id;
    row(mapping).filter(|row| *row < profile.mapping.len())
}

/// Whether it is a program's file: neither the kernel or another name in brackets, nor a shared library.
fn is_program(profile: &Profile, mapping: &Mapping) -> bool {
    let path = usize::try_from(mapping.filename).ok().and_then(|at| profile.string_table.get(at));
    let file = path.and_then(|path| path.rsplit_once('/')).map_or("", |(_, file)| file);
    let is_library = file.ends_with(".so") || file.contains(".so.");
    !file.is_empty() && !file.ends_with(']') && !is_library
}

#[cfg(test)]
mod test {
    use super::super::proto::{Location, Sample};
    use super::*;

    /// The first file of a profile: each sample is so many samples in locations of these files, innermost first.
    fn first(files: &[&str], samples: &[(i64, &[u64])]) -> String {
        let mut profile = Profile { string_table: vec![String::new()], ..Profile::default() };
        for (id, file) in (1..).zip(files) {
            profile.string_table.push((*file).to_owned());
            let filename = i64::try_from(id).unwrap();
            profile.mapping.push(Mapping { id, filename, ..Mapping::default() });
            profile.location.push(Location { id, mapping_id: id, ..Location::default() });
        }
        for (count, stack) in samples {
            let (location_id, value) = (stack.to_vec(), vec![*count]);
            profile.sample.push(Sample { location_id, value, ..Sample::default() });
        }
        put_first(&mut profile);
        let mut ids: Vec<_> = profile.mapping.iter().map(|it| it.id).collect();
        let first = files[usize::try_from(ids[0]).unwrap() - 1].to_owned();
        ids.sort_unstable();
        assert!(ids.into_iter().eq(1..=files.len() as u64));
        first
    }

    #[test]
    fn the_program_with_most_samples_is_first() {
        let files =
            ["[kernel]", "/usr/lib/libc.so.6", "/usr/bin/sh", "[vm1]/usr/bin/burn", "/lib/x.so"];
        assert_eq!(
            first(&files, &[(9, &[1]), (5, &[2]), (1, &[3]), (2, &[4]), (9, &[5])]),
            files[3]
        );
        // What the kernel and libraries do for a program is the program's.
        assert_eq!(first(&files, &[(9, &[1, 2, 3]), (2, &[4, 3])]), files[2]);
        // No program is known.
        assert_eq!(first(&files, &[(9, &[2]), (1, &[0, 77])]), files[0]);
        assert_eq!(first(&files, &[]), files[0]);
    }
}
