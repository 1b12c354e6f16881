//! The time axis of a recording.

use analysis::Resolver;
use analysis::vcpu_timeline::{VcpuTimelines, VcpuTimelinesBuilder};
use model::{OffCpuSource, Sample};
use recording::Recording;

use super::Usage;

/// Every vCPU's time; `edges` says how the edges of gaps are found, by default as recorded.
///
/// # Errors
/// A usage error when edges by switches are asked for and there are none; or the recording can't be read.
pub(crate) fn load<'t>(
    recording: &Recording,
    resolver: &Resolver<'t>,
    edges: Option<OffCpuSource>,
) -> anyhow::Result<VcpuTimelines> {
    load_seen(recording, resolver, edges, &mut |_| ())
}

/// The same, and shows every sample to `see`, in time order.
///
/// # Errors
/// As `load`.
pub(crate) fn load_seen(
    recording: &Recording,
    resolver: &Resolver<'_>,
    edges: Option<OffCpuSource>,
    see: &mut dyn FnMut(&Sample),
) -> anyhow::Result<VcpuTimelines> {
    let recorded = recording.header.off_cpu_source;
    let edges = edges.unwrap_or(recorded);
    if (edges, recorded) == (OffCpuSource::Switches, OffCpuSource::Samples) {
        let text = "this recording has no switches of vCPUs: record with --offcpu-source switches";
        return Err(Usage(text.to_owned()).into());
    }
    let mut builder = VcpuTimelinesBuilder::new(resolver, &recording.header, edges);
    recording.for_each_batch(&mut |batch| {
        for sample in batch {
            builder.push_sample(sample);
            see(sample);
        }
    })?;
    recording.for_each_switch_batch(&mut |batch| {
        batch.iter().for_each(|switch| builder.push_switch(switch));
    })?;
    Ok(builder.finish())
}
