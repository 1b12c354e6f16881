//! Columns made to fit on a line.

/// Longer names are cut where the line may be as long as it likes.
pub const NAME_CHARS: usize = 100;
const MIN_COLUMNS: usize = 80;

/// How much fits on a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// A terminal's columns; fewer than 80 count as 80. Names are cut until lines fit.
    Columns(usize),
    /// Not a terminal: only names beyond 100 characters are cut.
    Unlimited,
}

impl Width {
    /// How long a line may be; `None`: as long as it likes.
    #[must_use]
    pub fn columns(self) -> Option<usize> {
        match self {
            Self::Columns(columns) => Some(columns.max(MIN_COLUMNS)),
            Self::Unlimited => None,
        }
    }
}

/// Takes from the widest column, by weight, until a line fits. A column of weight 0 keeps its width.
pub(super) fn fitting(
    mut widths: Vec<usize>,
    weights: &[usize],
    gap: usize,
    columns: Option<usize>,
) -> Vec<usize> {
    let Some(columns) = columns else {
        let of_names = widths.iter_mut().zip(weights).filter(|(_, weight)| 0 < **weight);
        of_names.for_each(|(width, _)| *width = (*width).min(NAME_CHARS));
        return widths;
    };
    while columns < line(&widths, gap) {
        let of_names = widths.iter_mut().zip(weights).filter(|(_, weight)| 0 < **weight);
        match of_names.max_by_key(|(width, weight)| width.div_ceil(**weight)) {
            Some((widest @ 1.., _)) => *widest -= 1,
            _ => break,
        }
    }
    widths
}

/// How long a line of these columns is.
pub(super) fn line(widths: &[usize], gap: usize) -> usize {
    widths.iter().sum::<usize>() + gap * widths.len().saturating_sub(1)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_widest_names_give_way() {
        let check = |natural: &[usize], width: Width, expected: &[usize]| {
            let fitted = fitting(natural.to_vec(), &[0, 0, 3, 2], 2, width.columns());
            assert_eq!(fitted, expected, "{natural:?} {width:?}");
        };
        check(&[7, 6, 20, 10], Width::Columns(80), &[7, 6, 20, 10]);
        // 7 + 6 + 3 gaps of 2 leave 61.
        check(&[7, 6, 200, 20], Width::Columns(80), &[7, 6, 41, 20]);
        check(&[7, 6, 200, 20], Width::Columns(20), &[7, 6, 41, 20]);
        check(&[7, 6, 200, 20], Width::Columns(140), &[7, 6, 101, 20]);
        check(&[7, 6, 200, 300], Width::Columns(80), &[7, 6, 37, 24]);
        check(&[7, 6, 200, 20], Width::Unlimited, &[7, 6, 100, 20]);
        check(&[90, 6, 5, 0], Width::Columns(80), &[90, 6, 0, 0]);
    }
}
