//! Asking a guest to trace itself: the request, and its thread until the probes are attached.

use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::time::Duration;

use api::guest::{TraceOptions, TraceScope};
use guest::Limits;
use host::vms::VmProcess;
use model::MachineId;
use probes::FoundVm;
use sandbox::Sandbox;
use symbols::GuestChild;

use super::Guest;
use super::worker::{self, Command, Message, Work};
use crate::lock::PortLock;
use crate::trace::plan::GuestPath;
use crate::{GuestError, Roots};

/// A guest may take so long for each answer: an emulated one takes some seconds to load its probes.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(60);
const ANSWER_BYTES: u64 = 256 << 20;
/// Different kernel stacks that are kept.
const STACKS: u32 = 1 << 14;
/// Slots that one look takes out of the rings of all guests: half of what a ring of the host has by default, so that those
/// have room for what comes meanwhile.
const SLOTS_PER_LOOK: usize = 1 << 17;
/// Messages that wait for the recorder.
pub(super) const MAX_MESSAGES: usize = 4;

/// What of a guest is traced.
#[derive(Debug, Clone)]
pub(in crate::trace) struct GuestPlan {
    pub(in crate::trace) machine: MachineId,
    pub(in crate::trace) slots_per_cpu: u32,
    /// How many guests are traced.
    pub(in crate::trace) guests: usize,
    pub(in crate::trace) scope: TraceScope,
    pub(in crate::trace) path: GuestPath,
    /// Words; empty: none.
    pub(in crate::trace) command: Vec<String>,
}

/// A guest that attaches its probes.
#[derive(Debug)]
pub(in crate::trace) struct PreparedGuest {
    name: String,
    wanted: Wanted,
    commands: Sender<Command>,
    messages: Receiver<Message>,
}

/// How its rings are to be read.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) machine: MachineId,
    /// What the guest wrote into their heads.
    pub(super) mark: u64,
    pub(super) path: GuestPath,
    /// The name of the other way.
    pub(super) link: &'static str,
    /// Slots that one look takes of all its rings.
    pub(super) slots_per_look: usize,
    /// Whether only some of its tasks are traced.
    pub(super) is_filtered: bool,
}

impl PreparedGuest {
    /// Has a VM's guest reached and attach its probes, without waiting for it.
    ///
    /// # Errors
    /// Why it can't be traced.
    pub(in crate::trace) fn ask(
        vm: &FoundVm,
        process: &VmProcess,
        plan: &GuestPlan,
        roots: &Roots,
    ) -> Result<Self, GuestError> {
        let mark = probes::now().0.rotate_left(32) ^ u64::from(std::process::id()) | 1;
        let channel_to_it = crate::guests::channel(process)?;
        let work = Work {
            _port: PortLock::for_channel(&channel_to_it, &roots.locks)?,
            channel: channel_to_it,
            limits: Limits { time: ANSWER_TIME, bytes: ANSWER_BYTES },
            child: GuestChild::default(),
            proc: roots.proc.clone(),
            process: vm.pid,
            kvm: vm.kvm,
            options: TraceOptions {
                slots_per_cpu: plan.slots_per_cpu,
                stacks: STACKS,
                scope: plan.scope,
                mark,
                command: plan.command.clone(),
            },
            host_cpus: host::machine::online_cpus(&roots.sys).unwrap_or_default(),
        };
        let link = crate::guests::via(&work.channel);
        let ((commands, taken), (tell, messages)) = (channel(), sync_channel(MAX_MESSAGES));
        std::thread::Builder::new()
            .name("guest".to_owned())
            .spawn(move || worker::work(&work, &taken, &tell))
            .map_err(GuestError::Thread)?;
        let slots_per_look = SLOTS_PER_LOOK / plan.guests.max(1);
        let is_filtered = plan.scope != TraceScope::Everything;
        let (machine, path) = (plan.machine, plan.path);
        let wanted = Wanted { machine, mark, path, link, slots_per_look, is_filtered };
        Ok(Self { name: process.name.clone(), wanted, commands, messages })
    }

    /// Waits until its probes are attached.
    ///
    /// # Errors
    /// Why it can't be traced.
    pub(in crate::trace) fn begin(self) -> Result<Guest, GuestError> {
        let Self { name, wanted, commands, messages } = self;
        let begun = match messages.recv() {
            Ok(Message::Started(started)) => *started,
            Ok(Message::Failed(reason)) => return Err(reason),
            _ => return Err(GuestError::WorkerEnded),
        };
        Guest::new(name, &wanted, begun, (commands, messages), Sandbox::default())
    }
}
