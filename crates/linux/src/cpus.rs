//! A kernel's CPUs: where their variables are, and which virtual CPU each one is.

use model::{GuestPhys, GuestVirt};

use crate::kallsyms::Symbols;
use crate::memory::KernelMemory;
use crate::paging::AddressSpace;

/// Most CPUs of a kernel (`CONFIG_MAXSMP`).
const MAX_CPUS: u32 = 8192;
/// CPUs without an APIC id: `BAD_APICID`, of 16 bits at first.
const NO_APIC_IDS: [u32; 2] = [0xffff, u32::MAX];

/// A CPU that is present in a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelCpu {
    pub number: u32,
    /// KVM's id of the vCPU.
    pub apic_id: u32,
    /// What is added to the address of a per-CPU variable's symbol. It may wrap.
    pub per_cpu_offset: u64,
    /// Where the pointer to the running task is. It stays there until the guest boots anew.
    pub current_task: GuestPhys,
    /// Where the pointer to the last word of its stack for interrupts is, which holds the interrupted stack pointer.
    pub irq_stack: Option<GuestPhys>,
}

/// Reads the CPUs that are present. What a CPU lacks leaves out this one only. `irq_stack_in_hot`: offset of
/// `hardirq_stack_ptr` in `struct pcpu_hot`, if this kernel has it there.
#[must_use]
pub fn read_cpus(
    kernel: &AddressSpace<'_>,
    symbols: &Symbols,
    irq_stack_in_hot: Option<u64>,
) -> Vec<KernelCpu> {
    let Some(current_task) = current_task(symbols) else { return Vec::new() };
    let in_hot = || Some(GuestVirt(symbols.address("pcpu_hot")?.0.checked_add(irq_stack_in_hot?)?));
    let irq_stack = symbols.address("hardirq_stack_ptr").or_else(in_hot);
    let Some(offsets) = symbols.address("__per_cpu_offset") else {
        // A kernel for one CPU has one variable of each.
        return kernel
            .translate(current_task)
            .map(|current_task| KernelCpu {
                number: 0,
                apic_id: 0,
                per_cpu_offset: 0,
                current_task,
                irq_stack: irq_stack.and_then(|at| kernel.translate(at)),
            })
            .into_iter()
            .collect();
    };
    let apic_ids = ApicIds::new(symbols);
    let count = count_cpus(kernel, symbols, offsets);
    present(kernel, symbols, count)
        .filter_map(|number| {
            let slot = offsets.0.checked_add(u64::from(number) * 8)?;
            let per_cpu_offset = kernel.read_u64(GuestVirt(slot))?;
            let at = |symbol: GuestVirt| GuestVirt(symbol.0.wrapping_add(per_cpu_offset));
            Some(KernelCpu {
                number,
                apic_id: apic_ids.as_ref()?.read(kernel, at)?,
                per_cpu_offset,
                current_task: kernel.translate(at(current_task))?,
                irq_stack: irq_stack.and_then(|symbol| kernel.translate(at(symbol))),
            })
        })
        .collect()
}

/// From Linux 6.2 to 6.14 it is the first of `struct pcpu_hot`.
fn current_task(symbols: &Symbols) -> Option<GuestVirt> {
    symbols.address("current_task").or_else(|| symbols.address("pcpu_hot"))
}

/// `nr_cpu_ids`; where that is a constant, as many as the array has room for.
fn count_cpus(kernel: &AddressSpace<'_>, symbols: &Symbols, offsets: GuestVirt) -> u32 {
    let variable = || kernel.read_u32(symbols.address("nr_cpu_ids")?);
    let room = || {
        let end = symbols.next_above(offsets)?;
        u32::try_from((end.0 - offsets.0) / 8).ok()
    };
    variable().or_else(room).unwrap_or(1).clamp(1, MAX_CPUS)
}

fn present<'k>(
    kernel: &'k AddressSpace<'_>,
    symbols: &Symbols,
    count: u32,
) -> impl Iterator<Item = u32> + 'k {
    let mask = symbols.address("__cpu_present_mask");
    let is_present = move |number: &u32| {
        // A kernel of which this isn't known has the first CPU at least.
        let Some(mask) = mask else { return *number == 0 };
        let word = kernel.read_u64(GuestVirt(mask.0.wrapping_add(u64::from(number / 64) * 8)));
        word.is_some_and(|word| word >> (number % 64) & 1 != 0)
    };
    (0..count).filter(is_present)
}

/// `x86_cpu_to_apicid`: of 16 bits before Linux 6.7, then of 32.
struct ApicIds {
    symbol: GuestVirt,
    is_short: bool,
}

impl ApicIds {
    fn new(symbols: &Symbols) -> Option<Self> {
        let symbol = symbols.address("x86_cpu_to_apicid")?;
        // A variable of 16 bits with room behind it has zeros there, so that 32 bits say the same.
        let is_short = symbols.next_above(symbol).is_some_and(|next| next.0 - symbol.0 < 4);
        Some(Self { symbol, is_short })
    }

    fn read(&self, kernel: &AddressSpace<'_>, at: impl Fn(GuestVirt) -> GuestVirt) -> Option<u32> {
        let id = if self.is_short {
            u32::from(kernel.read_u16(at(self.symbol))?)
        } else {
            kernel.read_u32(at(self.symbol))?
        };
        (!NO_APIC_IDS.contains(&id)).then_some(id)
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::paging::PagingLevels;
    use crate::test::Ram;

    const ROOT: u64 = 0x10_0000;
    const IMAGE: u64 = 0xffff_ffff_8100_0000;
    const DIRECT: u64 = 0xffff_8880_0000_0000;

    struct Guest {
        ram: Ram,
        symbols: Symbols,
    }

    impl Guest {
        /// The image's variables are at 0x20_0000, and each CPU's at 0x40_0000 and every 64 KiB behind.
        fn new(symbols: &[(u64, &str)]) -> Self {
            let mut ram = Ram::new(&[(0, 0x100_0000)]);
            ram.map_range(ROOT, PagingLevels::Four, IMAGE, 0x20_0000, 0x4000);
            ram.map_range(ROOT, PagingLevels::Four, DIRECT + 0x40_0000, 0x40_0000, 0x10_0000);
            ram.write(0x20_0000, &[0; 0x4000]);
            ram.write(0x40_0000, &[0; 0x10_0000]);
            let mut all = Symbols::default();
            for (address, name) in symbols {
                all.push(GuestVirt(*address), b'D', name.as_bytes()).unwrap();
            }
            Self { ram, symbols: all }
        }

        fn put_cpu(&mut self, number: u64, first_symbol: u64, apic_id: &[u8], at: u64) {
            let area = 0x40_0000 + number * 0x1_0000;
            let offset = (DIRECT + area).wrapping_sub(first_symbol);
            self.ram.write(0x20_0000 + number * 8, &offset.to_le_bytes());
            self.ram.write(area + at - first_symbol, apic_id);
        }

        fn cpus(&self) -> Vec<(u32, u32, u64)> {
            let space = AddressSpace::new(&self.ram, GuestPhys(ROOT), PagingLevels::Four, 0);
            let cpus = read_cpus(&space, &self.symbols, Some(0x10)).into_iter();
            cpus.map(|cpu| (cpu.number, cpu.apic_id, cpu.current_task.0)).collect()
        }
    }

    const IMAGE_SYMBOLS: [(u64, &str); 3] = [
        (IMAGE, "__per_cpu_offset"),
        (IMAGE + 0x1000, "nr_cpu_ids"),
        (IMAGE + 0x2000, "__cpu_present_mask"),
    ];

    /// Variables of the CPUs from `first` on, with what follows the APIC id.
    fn guest(first: u64, name: &str, next: (u64, &'static str)) -> Guest {
        let per_cpu = [(first + 0x100, "x86_cpu_to_apicid"), next, (first + 0x200, name)];
        let mut guest = Guest::new(&[&per_cpu[..], &IMAGE_SYMBOLS].concat());
        guest.ram.write(0x20_1000, &8_u32.to_le_bytes());
        guest
    }

    #[test]
    fn cpus_have_the_apic_ids_of_their_vcpus() {
        // 16 bits, with another variable behind.
        let mut short = guest(0, "current_task", (0x102, "x86_bios_cpu_apicid"));
        short.ram.write(0x20_2000, &[0b1011]);
        for (number, id) in [(0, 0), (1, 1), (3, 4)] {
            short.put_cpu(number, 0, &[id, 0, id, 0], 0x100);
        }
        assert_eq!(short.cpus(), [(0, 0, 0x40_0200), (1, 1, 0x41_0200), (3, 4, 0x43_0200)]);

        // 32 bits; symbols are in the image since 6.15.
        let first = IMAGE + 0x3000;
        let mut long = guest(first, "pcpu_hot", (first + 0x104, "other"));
        long.ram.write(0x20_2000, &[0b111]);
        for (number, id) in [(0, [0, 0, 0, 0]), (1, [0xff; 4]), (2, [0, 0, 1, 0])] {
            long.put_cpu(number, first, &id, first + 0x100);
        }
        assert_eq!(long.cpus(), [(0, 0, 0x40_0200), (2, 0x1_0000, 0x42_0200)]);
    }

    #[test]
    fn the_stack_for_interrupts_is_a_variable_of_its_own_or_among_the_hot_ones() {
        let irq_stack = |symbols: &[(u64, &str)]| {
            let guest = Guest::new(symbols);
            let space = AddressSpace::new(&guest.ram, GuestPhys(ROOT), PagingLevels::Four, 0);
            read_cpus(&space, &guest.symbols, Some(0x18))[0].irq_stack
        };
        let own = [(IMAGE + 0x40, "current_task"), (IMAGE + 0x80, "hardirq_stack_ptr")];
        assert_eq!(irq_stack(&own), Some(GuestPhys(0x20_0080)));
        assert_eq!(irq_stack(&[(IMAGE + 0x40, "pcpu_hot")]), Some(GuestPhys(0x20_0058)));
        assert_eq!(irq_stack(&[(IMAGE + 0x40, "current_task")]), None);
    }

    #[test]
    fn a_kernel_for_one_cpu_has_one() {
        let mut guest = Guest::new(&[(IMAGE + 0x40, "current_task")]);
        guest.ram.write(0x20_0040, &[1]);
        assert_eq!(guest.cpus(), [(0, 0, 0x20_0040)]);
    }

    #[test]
    fn hostile_counts_and_addresses_are_bounded() {
        let mut guest = guest(0, "current_task", (0x104, "other"));
        guest.ram.write(0x20_1000, &u32::MAX.to_le_bytes());
        guest.ram.write(0x20_2000, &[0xff; 0x1000]);
        guest.ram.write(0x20_0000, &[0xff; 0x1000]);
        assert_eq!(guest.cpus(), []);
        assert_eq!(Guest::new(&[]).cpus(), []);
    }
}
