/* Heat in a plate: Jacobi's iteration on a grid, split by rows among MPI ranks. The program of the study `scaling`.
 *
 *   heat ROWS COLUMNS ITERATIONS
 *
 * The top edge is held at 1, the other edges at 0. Each iteration replaces every inner point by the mean of its four
 * neighbours: it exchanges one row with each neighbouring rank (halo), and every 20 iterations all ranks agree on the
 * largest change (all-reduce). Rank 0 prints the result, and appends it as JSON lines to the file $HPCRL_METRICS.
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { EVERY = 20, DOWN = 1, UP = 2 };

/* Read a count from the command line, or end all ranks. */
static long count(const char *name, const char *text) {
  char *end;
  long value = strtol(text, &end, 10);
  if (*end != '\0' || end == text || value < 1 || value > 1000000000) {
    fprintf(stderr, "heat: %s: expected a whole number from 1 to 1000000000, got \"%s\"\n", name, text);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  return value;
}

static void report(long step, double change, double seconds, double updates) {
  const char *path = getenv("HPCRL_METRICS");
  FILE *file = path ? fopen(path, "a") : NULL;
  if (!file) return;
  fprintf(file, "{\"step\": %ld, \"largest_change\": %.17g, \"solver_seconds\": %.6f, \"updates_per_second\": %.6g}\n",
          step, change, seconds, updates);
  fclose(file);
}

int main(int argc, char **argv) {
  int rank, ranks;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 4) {
    if (rank == 0) fprintf(stderr, "usage: heat ROWS COLUMNS ITERATIONS\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  long rows = count("ROWS", argv[1]), columns = count("COLUMNS", argv[2]), iterations = count("ITERATIONS", argv[3]);
  if (rows < ranks) {
    if (rank == 0) fprintf(stderr, "heat: ROWS: expected at least one for each of %d ranks, got %ld\n", ranks, rows);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }

  /* If the rows cannot be shared evenly, the first ranks have one more row. One halo row above, one below. */
  long own = rows / ranks + (rank < rows % ranks), width = columns + 2;
  int above = rank > 0 ? rank - 1 : MPI_PROC_NULL, below = rank < ranks - 1 ? rank + 1 : MPI_PROC_NULL;
  double *old = calloc((size_t)(own + 2) * width, sizeof *old), *new = calloc((size_t)(own + 2) * width, sizeof *new);
  if (!old || !new) {
    fprintf(stderr, "heat: rank %d: out of memory for %ld x %ld points\n", rank, own, columns);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  if (rank == 0)
    for (long j = 0; j < width; j++) old[j] = new[j] = 1.0;

  MPI_Barrier(MPI_COMM_WORLD);
  double start = MPI_Wtime(), change = 0.0, seconds = 0.0;
  for (long step = 1; step <= iterations; step++) {
    MPI_Sendrecv(old + width, (int)width, MPI_DOUBLE, above, UP, old + (own + 1) * width, (int)width, MPI_DOUBLE, below, UP,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(old + own * width, (int)width, MPI_DOUBLE, below, DOWN, old, (int)width, MPI_DOUBLE, above, DOWN,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (long i = 1; i <= own; i++) {
      const double *up = old + (i - 1) * width, *here = old + i * width, *down = old + (i + 1) * width;
      double *out = new + i * width;
      for (long j = 1; j <= columns; j++) out[j] = 0.25 * (up[j] + down[j] + here[j - 1] + here[j + 1]);
    }
    if (step % EVERY == 0 || step == iterations) {
      double largest = 0.0;
      for (long i = 1; i <= own; i++)
        for (long j = 1; j <= columns; j++) largest = fmax(largest, fabs(new[i * width + j] - old[i * width + j]));
      MPI_Allreduce(&largest, &change, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    }
    double *kept = old;
    old = new;
    new = kept;
  }
  seconds = MPI_Wtime() - start;

  if (rank == 0) {
    double updates = (double)rows * (double)columns * (double)iterations / seconds;
    printf("ranks %d, grid %ld x %ld, iterations %ld\n", ranks, rows, columns, iterations);
    printf("largest change %.17g\nsolver seconds %.6f\nupdates per second %.6g\n", change, seconds, updates);
    report(iterations, change, seconds, updates);
  }
  free(old);
  free(new);
  MPI_Finalize();
  return 0;
}
