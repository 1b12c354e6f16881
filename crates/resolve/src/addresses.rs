//! Which addresses need names.

use model::{ModuleId, Sample, Tables, VcpuState};
use rustc_hash::FxHashSet;

use crate::resolver::{CallStackKey, CodeRef, Resolver, SampleSite};

/// Collects the distinct (module, offset) that a recording's samples hit, callers included, by the
/// same look-up that names them later.
///
/// Callers are looked up at the call, see `Resolver::call_stack`.
#[derive(Debug)]
pub struct Addresses<'t> {
    resolver: Resolver<'t>,
    places: FxHashSet<CodeRef>,
    stacks: FxHashSet<CallStackKey>,
    found: FxHashSet<(ModuleId, u64)>,
}

impl<'t> Addresses<'t> {
    /// For samples that speak of `tables`, whose `symbols` may be empty.
    #[must_use]
    pub fn new(tables: &'t Tables) -> Self {
        Self {
            resolver: Resolver::new(tables),
            places: FxHashSet::default(),
            stacks: FxHashSet::default(),
            found: FxHashSet::default(),
        }
    }

    /// Adds a sample's address, and those of its call stack.
    pub fn add(&mut self, sample: &Sample) {
        let located = self.resolver.locate(sample);
        self.add_place(located.code);
        // Where the guest left it: reports of exits name that code.
        if let VcpuState::Vmm(vcpu) = sample.vcpu {
            let exit = Sample { vcpu: VcpuState::Guest(vcpu), ..*sample };
            let located = self.resolver.locate(&exit);
            self.add_place(located.code);
            self.add_callers(&exit, &located);
        }
        self.add_callers(sample, &located);
    }

    fn add_callers(&mut self, sample: &Sample, located: &SampleSite) {
        let key = Resolver::call_stack_key(sample, located);
        if sample.stack.is_some() && self.stacks.insert(key) {
            for place in self.resolver.call_stack(sample, located) {
                self.add_place(place);
            }
        }
    }

    /// All of them, each once, by module and offset.
    #[must_use]
    pub fn into_sorted(self) -> Vec<(ModuleId, u64)> {
        let mut sorted: Vec<_> = self.found.into_iter().collect();
        sorted.sort_unstable();
        sorted
    }

    fn add_place(&mut self, place: CodeRef) {
        if self.places.insert(place) {
            let code = self.resolver.code(place);
            self.found.extend(code.module.map(|module| (module, code.offset)));
        }
    }
}
