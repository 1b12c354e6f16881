//! Standard error may have no reader any more: `eprintln!` would then panic, and a recording would not be finished.

/// Writes a line to standard error, if it can be written; `say!(part: ...)` writes no line's end.
#[macro_export]
macro_rules! say {
    (part: $($text:tt)*) => {
        drop(std::io::Write::write_fmt(&mut std::io::stderr(), format_args!($($text)*)))
    };
    ($($text:tt)*) => {
        $crate::say!(part: "{}\n", format_args!($($text)*))
    };
}
