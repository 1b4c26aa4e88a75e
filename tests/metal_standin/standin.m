// A software MTLDevice: the objects of Metal.h over the executor of runtime.h.
//
// It is strict about what Metal leaves undefined: what a program may not do raises MTLAssertion.
// Commands that are committed run when somebody waits for them, no earlier; until then the CPU's
// view of their buffers cannot be touched. Fresh memory holds NaN.
#define _GNU_SOURCE 1
#import <Metal/Metal.h>

#include "runtime.h"
#include "standin.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, MOST_COMMANDS = 64 };
static const unsigned POISON = 0x7fc0dead;

static struct { int checked, simdgroups, absent; unsigned long seed, limit; long fail_after, fail_inside; } set;
static long live, commits, dispatches;
static int fast;

void standin_reset(void) {
    memset(&set, 0, sizeof set);
    set.simdgroups = 1, set.limit = 1ul << 34, set.fail_after = -1;
    commits = dispatches = fast = 0;
}
__attribute__((constructor)) static void start(void) { standin_reset(); }
void standin_checked(int on) { set.checked = on; }
void standin_seed(unsigned long seed) { set.seed = seed; }
void standin_simdgroups(int on) { set.simdgroups = on; }
void standin_limit(unsigned long nbytes) { set.limit = nbytes; }
void standin_fail_after(long n) { set.fail_after = n; }
void standin_fail_inside(long threads) { set.fail_inside = threads; }
void standin_absent(int on) { set.absent = on; }
long standin_live(void) { return live; }
long standin_commits(void) { return commits; }
long standin_dispatches(void) { return dispatches; }
int standin_fast(void) { return fast; }

static void refuse(NSString *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    NSString *text = [[[NSString alloc] initWithFormat:format arguments:arguments] autorelease];
    va_end(arguments);
    [NSException raise:@"MTLAssertion" format:@"%@", text];
}

static NSError *failure(const char *text) {
    NSString *words = [NSString stringWithUTF8String:text];
    return [NSError errorWithDomain:@"Standin" code:1 userInfo:[NSDictionary dictionaryWithObject:words forKey:NSLocalizedDescriptionKey]];
}

#define COUNTED \
    -(id)init { \
        self = [super init]; \
        if (self) live++; \
        return self; \
    }

@implementation MTLCompileOptions
@synthesize fastMathEnabled = _fast;
- (id)init {
    self = [super init];
    live++;
    _fast = YES; // as Apple's
    return self;
}
- (void)dealloc { live--; [super dealloc]; }
@end

// -- Memory: what the CPU sees and what kernels see are two views of the same pages ----------------

@interface SoftBuffer : NSObject <MTLBuffer> { @public char *cpu, *gpu; NSUInteger length, capacity; int flying; BOOL shared; } @end
@implementation SoftBuffer
@synthesize length = length;
COUNTED
- (void)own:(NSUInteger)nbytes {
    length = nbytes;
    capacity = (nbytes + PAGE - 1) / PAGE * PAGE;
    int file = memfd_create("buffer", 0);
    if (file < 0 || ftruncate(file, (off_t)capacity)) abort();
    cpu = mmap(NULL, capacity, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    gpu = mmap(NULL, capacity + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); // and a page that faults
    mmap(gpu, capacity, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
    close(file);
    for (NSUInteger i = 0; i < capacity / 4; i++) ((unsigned *)gpu)[i] = POISON;
    soft_memory_add(gpu, length, 0);
}
- (void)share:(char *)start length:(NSUInteger)nbytes {
    cpu = gpu = start, length = capacity = nbytes, shared = YES;
    soft_memory_add(gpu, length, 0);
}
- (void)fly:(int)change { // 1: one more command is on its way that uses it
    flying += change;
    if (!shared) mprotect(cpu, capacity, flying ? PROT_NONE : PROT_READ | PROT_WRITE);
}
- (void *)contents { return cpu; }
- (void)dealloc {
    if (flying) refuse(@"a buffer is freed while commands use it");
    soft_memory_remove(gpu);
    if (!shared) {
        munmap(cpu, capacity);
        munmap(gpu, capacity + PAGE);
    }
    live--;
    [super dealloc];
}
@end

// -- Shaders --------------------------------------------------------------------------------------

@interface SoftLibrary : NSObject <MTLLibrary> { @public const soft_kernel *kernels; } @end
@interface SoftFunction : NSObject <MTLFunction> { @public const soft_kernel *kernel; SoftLibrary *library; } @end
@interface SoftPipeline : NSObject <MTLComputePipelineState> { @public SoftFunction *function; } @end

@implementation SoftFunction
COUNTED
- (NSString *)name { return [NSString stringWithUTF8String:kernel->name]; }
- (void)dealloc { [library release]; live--; [super dealloc]; }
@end

@implementation SoftLibrary
COUNTED
- (id<MTLFunction>)newFunctionWithName:(NSString *)name {
    for (const soft_kernel *k = kernels; k->name; k++) {
        if (strcmp(k->name, [name UTF8String])) continue;
        SoftFunction *function = [[SoftFunction alloc] init];
        function->kernel = k;
        function->library = [self retain];
        return function;
    }
    return nil;
}
- (void)dealloc { live--; [super dealloc]; } // its code stays loaded
@end

@implementation SoftPipeline
COUNTED
- (NSUInteger)maxTotalThreadsPerThreadgroup { return SOFT_THREADS; }
- (void)dealloc { [function release]; live--; [super dealloc]; }
@end

// -- Commands -------------------------------------------------------------------------------------

@interface SoftCall : NSObject { @public soft_dispatch dispatch; SoftPipeline *pipeline; SoftBuffer *buffers[SOFT_BUFFERS]; } @end
@interface SoftCommands : NSObject <MTLCommandBuffer> { @public NSMutableArray *calls; MTLCommandBufferStatus status; NSError *error; BOOL encoding; id queue; } @end
@interface SoftEncoder : NSObject <MTLComputeCommandEncoder> { @public SoftCommands *commands; SoftPipeline *pipeline; SoftBuffer *buffers[SOFT_BUFFERS]; NSUInteger offsets[SOFT_BUFFERS]; BOOL ended; } @end
@interface SoftQueue : NSObject <MTLCommandQueue> { @public NSMutableArray *pending; int made; } - (void)runUpTo:(id)last; @end

@implementation SoftCall
COUNTED
- (void)dealloc {
    [pipeline release];
    for (int i = 0; i < SOFT_BUFFERS; i++) [buffers[i] release];
    live--;
    [super dealloc];
}
@end

@implementation SoftEncoder
COUNTED
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state {
    [(id)state retain];
    [pipeline release];
    pipeline = (SoftPipeline *)state;
}
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)i {
    if (i >= SOFT_BUFFERS) refuse(@"setBuffer: index %lu", i);
    if (buffer && offset >= [buffer length]) refuse(@"setBuffer: offset %lu in %lu bytes", offset, [buffer length]);
    [(id)buffer retain];
    [buffers[i] release];
    buffers[i] = (SoftBuffer *)buffer;
    offsets[i] = offset;
}
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)threads {
    NSUInteger n = threads.width * threads.height * threads.depth;
    if (ended) refuse(@"dispatch after endEncoding");
    if (!pipeline) refuse(@"dispatch without a pipeline");
    if (n < 1 || n > SOFT_THREADS) refuse(@"dispatch: %lu threads in a group", n);
    if (!(groups.width * groups.height * groups.depth)) refuse(@"dispatch: no groups");
    SoftCall *call = [[SoftCall alloc] init];
    call->pipeline = [pipeline retain];
    call->dispatch.kernel = pipeline->function->kernel;
    call->dispatch.groups = (soft_size){groups.width, groups.height, groups.depth};
    call->dispatch.threads = (soft_size){threads.width, threads.height, threads.depth};
    for (int i = 0; i < SOFT_BUFFERS; i++)
        if (buffers[i]) {
            call->buffers[i] = [buffers[i] retain];
            call->dispatch.buffers[i] = buffers[i]->gpu + offsets[i];
            call->dispatch.nbytes[i] = buffers[i]->length - offsets[i];
        }
    [commands->calls addObject:call];
    [call release];
}
- (void)endEncoding {
    if (ended) refuse(@"endEncoding twice");
    ended = YES;
    commands->encoding = NO;
}
- (void)dealloc {
    if (!ended) refuse(@"an encoder is freed without endEncoding");
    [pipeline release];
    for (int i = 0; i < SOFT_BUFFERS; i++) [buffers[i] release];
    [commands release];
    live--;
    [super dealloc];
}
@end

@implementation SoftCommands
@synthesize status = status;
@synthesize error = error;
- (id)init {
    self = [super init];
    live++;
    calls = [[NSMutableArray alloc] init];
    return self;
}
- (double)GPUStartTime { return 0; }
- (double)GPUEndTime { return status < MTLCommandBufferStatusCompleted ? 0 : 1e-3; }
- (id<MTLComputeCommandEncoder>)computeCommandEncoder {
    if (encoding) refuse(@"computeCommandEncoder: another one is open");
    if (status) refuse(@"computeCommandEncoder: the commands are committed");
    encoding = YES;
    SoftEncoder *encoder = [[[SoftEncoder alloc] init] autorelease];
    encoder->commands = [self retain];
    return encoder;
}
- (void)fly:(int)change {
    for (NSUInteger i = 0; i < [calls count]; i++) {
        SoftCall *call = [calls objectAtIndex:i];
        for (int j = 0; j < SOFT_BUFFERS; j++) [call->buffers[j] fly:change];
    }
}
- (void)commit {
    if (encoding) refuse(@"commit before endEncoding");
    if (status) refuse(@"commit twice");
    status = MTLCommandBufferStatusCommitted;
    commits++;
    [self fly:1];
    [((SoftQueue *)queue)->pending addObject:self];
}
- (void)run {
    char text[2048];
    status = MTLCommandBufferStatusCompleted;
    for (NSUInteger i = 0; i < [calls count] && !error; i++) {
        SoftCall *call = [calls objectAtIndex:i];
        if (set.fail_after >= 0 && set.fail_after-- == 0) {
            if (set.fail_inside) soft_stop_after(set.fail_inside), soft_run(&call->dispatch, set.seed, text, sizeof text);
            error = [failure("Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)") retain];
        } else if (soft_run(&call->dispatch, set.seed, text, sizeof text)) error = [failure(text) retain];
        dispatches++;
    }
    if (error) status = MTLCommandBufferStatusError;
    [self fly:-1];
}
- (void)waitUntilCompleted {
    if (status < MTLCommandBufferStatusCommitted) refuse(@"waitUntilCompleted before commit");
    if (status < MTLCommandBufferStatusCompleted) [(SoftQueue *)queue runUpTo:self];
}
- (void)dealloc {
    ((SoftQueue *)queue)->made--;
    [calls release];
    [error release];
    [queue release];
    live--;
    [super dealloc];
}
@end

@implementation SoftQueue
- (id)init {
    self = [super init];
    live++;
    pending = [[NSMutableArray alloc] init];
    return self;
}
- (id<MTLCommandBuffer>)commandBuffer {
    if (++made > MOST_COMMANDS) refuse(@"commandBuffer: %d are not done, and this call would wait for ever", MOST_COMMANDS);
    SoftCommands *commands = [[[SoftCommands alloc] init] autorelease];
    commands->queue = [self retain];
    return commands;
}
- (void)runUpTo:(id)last {
    while ([pending count]) {
        SoftCommands *commands = [[[pending objectAtIndex:0] retain] autorelease];
        [pending removeObjectAtIndex:0];
        [commands run];
        if (commands == last) return;
    }
}
- (void)dealloc { [pending release]; live--; [super dealloc]; }
@end

// -- Device ---------------------------------------------------------------------------------------

// Let msl.py compile a shader; return the path of the object, or the reasons why not.
static BOOL compile(NSString *source, BOOL fast, char *answer, size_t room) {
    char path[] = "/tmp/standin-XXXXXX", command[2048];
    int file = mkstemp(path);
    FILE *text = fdopen(file, "w");
    fputs([source UTF8String], text);
    fclose(text);
    snprintf(command, sizeof command, "'%s' '%s/msl.py' '%s' %s %s 2>&1", STANDIN_PYTHON, STANDIN_HERE, path,
             set.checked ? "--checked" : "", fast ? "--fast" : "");
    FILE *tool = popen(command, "r");
    size_t n = fread(answer, 1, room - 1, tool);
    answer[n] = 0;
    int failed = pclose(tool);
    unlink(path);
    if (!failed) answer[strcspn(answer, "\n")] = 0;
    return !failed;
}

@interface SoftDevice : NSObject <MTLDevice> @end
@implementation SoftDevice
COUNTED
- (void)dealloc { live--; [super dealloc]; }
- (NSString *)name { return @"a device in software (tests/metal_standin)"; }
- (NSUInteger)maxBufferLength { return set.limit; }
- (NSUInteger)maxThreadgroupMemoryLength { return SOFT_THREADGROUP_BYTES; }
- (uint64_t)recommendedMaxWorkingSetSize { return 1ull << 34; }
- (BOOL)hasUnifiedMemory { return YES; }
- (BOOL)supportsFamily:(MTLGPUFamily)family {
    return family == MTLGPUFamilyCommon1 || family == (set.simdgroups ? MTLGPUFamilyApple7 : MTLGPUFamilyMac2);
}
- (id<MTLCommandQueue>)newCommandQueue { return [[SoftQueue alloc] init]; }
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)nbytes options:(MTLResourceOptions)options {
    if (!nbytes) refuse(@"newBufferWithLength: 0");
    if (options != MTLResourceStorageModeShared) refuse(@"newBufferWithLength: only shared memory is known");
    if (nbytes > set.limit) return nil;
    SoftBuffer *buffer = [[SoftBuffer alloc] init];
    [buffer own:nbytes];
    return buffer;
}
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void *)pointer length:(NSUInteger)nbytes options:(MTLResourceOptions)options
                              deallocator:(void (^)(void *, NSUInteger))deallocator {
    if ((uintptr_t)pointer % PAGE || nbytes % PAGE || !nbytes) refuse(@"newBufferWithBytesNoCopy: whole pages only");
    if (options != MTLResourceStorageModeShared) refuse(@"newBufferWithBytesNoCopy: only shared memory is known");
    if (deallocator) refuse(@"newBufferWithBytesNoCopy: a deallocator is not known");
    if (nbytes > set.limit) return nil;
    SoftBuffer *buffer = [[SoftBuffer alloc] init];
    [buffer share:pointer length:nbytes];
    return buffer;
}
- (id<MTLLibrary>)newLibraryWithSource:(NSString *)source options:(MTLCompileOptions *)options error:(NSError **)error {
    char answer[8192];
    BOOL quick = !options || [options fastMathEnabled];
    fast |= quick;
    static NSMutableDictionary *compiled; // paths of objects, by what they were compiled from
    if (!compiled) compiled = [[NSMutableDictionary alloc] init];
    NSString *key = [NSString stringWithFormat:@"%d %d %@", set.checked, quick, source];
    NSString *known = [compiled objectForKey:key];
    if (known) snprintf(answer, sizeof answer, "%s", [known UTF8String]);
    BOOL done = known || compile(source, quick, answer, sizeof answer);
    if (done && !known) [compiled setObject:[NSString stringWithUTF8String:answer] forKey:key];
    Dl_info executor;
    if (dladdr((void *)soft_run, &executor)) dlopen(executor.dli_fname, RTLD_NOLOAD | RTLD_NOW | RTLD_GLOBAL); // shaders call it
    void *object = done ? dlopen(answer, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!object) {
        if (error) *error = failure(done ? dlerror() : answer);
        return nil;
    }
    SoftLibrary *library = [[SoftLibrary alloc] init];
    library->kernels = dlsym(object, "soft_kernels");
    soft_library_add(library->kernels);
    return library;
}
- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function error:(NSError **)error {
    (void)error;
    SoftPipeline *pipeline = [[SoftPipeline alloc] init];
    pipeline->function = [(id)function retain];
    return pipeline;
}
@end

id<MTLDevice> MTLCreateSystemDefaultDevice(void) {
    return set.absent ? nil : [[SoftDevice alloc] init];
}
