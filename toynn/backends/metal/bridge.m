// The bridge to Metal: calls of Apple's API and nothing else. References are counted by hand.
#import <Foundation/Foundation.h>
#import <Metal/Metal.h>

#include "bridge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if __has_feature(objc_arc)
#error "bridge.m counts references itself: compile it with -fno-objc-arc"
#endif

struct toynn_metal_device {
    id<MTLDevice> device;
    id<MTLCommandQueue> queue;
};

struct toynn_metal_commands {
    id<MTLCommandBuffer> buffer;
    id<MTLComputeCommandEncoder> encoder;
};

static void say(toynn_metal_error *error, const char *what, NSError *why) {
    const char *words = why ? [[why localizedDescription] UTF8String] : NULL;
    snprintf(error->text, sizeof error->text, "%s: %s", what, words ? words : "the device gives no reason");
}

// -- Device ---------------------------------------------------------------------------------------

toynn_metal_device *toynn_metal_device_open(toynn_metal_error *error) {
    @autoreleasepool {
        error->text[0] = 0;
        id<MTLDevice> found = MTLCreateSystemDefaultDevice();
        if (!found) return NULL;
        id<MTLCommandQueue> queue = [found newCommandQueue];
        toynn_metal_device *device = queue ? calloc(1, sizeof *device) : NULL;
        if (!device) {
            say(error, "newCommandQueue", nil);
            [queue release];
            [found release];
            return NULL;
        }
        device->device = found;
        device->queue = queue;
        return device;
    }
}

void toynn_metal_device_close(toynn_metal_device *device) {
    if (!device) return;
    @autoreleasepool {
        [device->queue release];
        [device->device release];
        free(device);
    }
}

void toynn_metal_device_describe(toynn_metal_device *device, toynn_metal_limits *limits) {
    static const struct {
        MTLGPUFamily family;
        const char *name;
        int simdgroups;
    } families[] = {
        {MTLGPUFamilyApple9, "apple9", 1}, {MTLGPUFamilyApple8, "apple8", 1},
        {MTLGPUFamilyApple7, "apple7", 1}, {MTLGPUFamilyMac2, "mac2", 0},
        {MTLGPUFamilyCommon3, "common3", 0}, {MTLGPUFamilyCommon1, "common1", 0},
    };
    @autoreleasepool {
        id<MTLDevice> found = device->device;
        memset(limits, 0, sizeof *limits);
        snprintf(limits->name, sizeof limits->name, "%s", [[found name] UTF8String]);
        snprintf(limits->family, sizeof limits->family, "none that is known");
        for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
            if (![found supportsFamily:families[i].family]) continue;
            snprintf(limits->family, sizeof limits->family, "%s", families[i].name);
            limits->simdgroups = families[i].simdgroups;
            break;
        }
        limits->unified_memory = [found hasUnifiedMemory] ? 1 : 0;
        limits->max_buffer_nbytes = [found maxBufferLength];
        limits->working_set_nbytes = [found recommendedMaxWorkingSetSize];
        limits->threadgroup_nbytes = [found maxThreadgroupMemoryLength];
    }
}

// -- Memory ---------------------------------------------------------------------------------------

toynn_metal_buffer *toynn_metal_buffer_allocate(toynn_metal_device *device, size_t nbytes) {
    @autoreleasepool {
        id<MTLBuffer> buffer = [device->device newBufferWithLength:nbytes options:MTLResourceStorageModeShared];
        if (buffer) memset([buffer contents], 0, nbytes);
        return (toynn_metal_buffer *)buffer;
    }
}

toynn_metal_buffer *toynn_metal_buffer_share(toynn_metal_device *device, void *start, size_t nbytes) {
    @autoreleasepool {
        return (toynn_metal_buffer *)[device->device newBufferWithBytesNoCopy:start
                                                                       length:nbytes
                                                                      options:MTLResourceStorageModeShared
                                                                  deallocator:nil];
    }
}

void toynn_metal_buffer_release(toynn_metal_buffer *buffer) {
    @autoreleasepool {
        [(id<MTLBuffer>)buffer release];
    }
}

void *toynn_metal_buffer_contents(toynn_metal_buffer *buffer) { return [(id<MTLBuffer>)buffer contents]; }

// -- Shaders --------------------------------------------------------------------------------------

toynn_metal_library *toynn_metal_library_compile(toynn_metal_device *device, const char *source,
                                                 toynn_metal_error *error) {
    @autoreleasepool {
        NSError *why = nil;
        MTLCompileOptions *options = [[MTLCompileOptions alloc] init];
        [options setFastMathEnabled:NO]; // NaN stays NaN, and exp is as exact as documented
        id<MTLLibrary> library = [device->device newLibraryWithSource:[NSString stringWithUTF8String:source]
                                                              options:options
                                                                error:&why];
        [options release];
        if (!library) say(error, "newLibraryWithSource", why);
        return (toynn_metal_library *)library;
    }
}

void toynn_metal_library_release(toynn_metal_library *library) {
    @autoreleasepool {
        [(id<MTLLibrary>)library release];
    }
}

toynn_metal_pipeline *toynn_metal_pipeline_make(toynn_metal_device *device,
                                                toynn_metal_library *library, const char *function,
                                                toynn_metal_error *error) {
    @autoreleasepool {
        NSError *why = nil;
        NSString *name = [NSString stringWithUTF8String:function];
        id<MTLFunction> found = [(id<MTLLibrary>)library newFunctionWithName:name];
        if (!found) {
            say(error, "newFunctionWithName", nil);
            return NULL;
        }
        id<MTLComputePipelineState> pipeline = [device->device newComputePipelineStateWithFunction:found error:&why];
        [found release];
        if (!pipeline) say(error, "newComputePipelineStateWithFunction", why);
        return (toynn_metal_pipeline *)pipeline;
    }
}

void toynn_metal_pipeline_release(toynn_metal_pipeline *pipeline) {
    @autoreleasepool {
        [(id<MTLComputePipelineState>)pipeline release];
    }
}

size_t toynn_metal_pipeline_threads(toynn_metal_pipeline *pipeline) {
    return [(id<MTLComputePipelineState>)pipeline maxTotalThreadsPerThreadgroup];
}

// -- Commands -------------------------------------------------------------------------------------

toynn_metal_commands *toynn_metal_commands_begin(toynn_metal_device *device) {
    @autoreleasepool {
        toynn_metal_commands *commands = calloc(1, sizeof *commands);
        if (!commands) return NULL;
        commands->buffer = [[device->queue commandBuffer] retain];
        commands->encoder = [[commands->buffer computeCommandEncoder] retain];
        if (commands->encoder) return commands;
        [commands->buffer release];
        free(commands);
        return NULL;
    }
}

void toynn_metal_commands_dispatch(toynn_metal_commands *commands, toynn_metal_pipeline *pipeline,
                                   int n_buffers, toynn_metal_buffer *const *buffers,
                                   const size_t *offsets, const uint32_t groups[3],
                                   const uint32_t threads[3]) {
    id<MTLComputeCommandEncoder> encoder = commands->encoder;
    [encoder setComputePipelineState:(id<MTLComputePipelineState>)pipeline];
    for (int i = 0; i < n_buffers; i++)
        [encoder setBuffer:(id<MTLBuffer>)buffers[i] offset:offsets[i] atIndex:(NSUInteger)i];
    [encoder dispatchThreadgroups:MTLSizeMake(groups[0], groups[1], groups[2])
            threadsPerThreadgroup:MTLSizeMake(threads[0], threads[1], threads[2])];
}

void toynn_metal_commands_commit(toynn_metal_commands *commands) {
    @autoreleasepool {
        [commands->encoder endEncoding];
        [commands->encoder release];
        commands->encoder = nil;
        [commands->buffer commit];
    }
}

int toynn_metal_commands_wait(toynn_metal_commands *commands, toynn_metal_error *error) {
    @autoreleasepool {
        [commands->buffer waitUntilCompleted];
        if ([commands->buffer status] == MTLCommandBufferStatusCompleted) return 0;
        say(error, "command buffer", [commands->buffer error]);
        return -1;
    }
}

double toynn_metal_commands_seconds(toynn_metal_commands *commands) {
    return [commands->buffer GPUEndTime] - [commands->buffer GPUStartTime];
}

void toynn_metal_commands_release(toynn_metal_commands *commands) {
    if (!commands) return;
    @autoreleasepool {
        if (commands->encoder) [commands->encoder endEncoding]; // begun, but never committed
        [commands->encoder release];
        [commands->buffer release];
        free(commands);
    }
}
